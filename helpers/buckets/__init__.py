"""Gradients packed into flat buckets; which parameter goes where. Chapter 10 builds them."""

from .bucket import Bucket
from .observe import observe_ready_s
from .plan import DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES, plan_buckets

__all__ = [
    "DEFAULT_CAP_BYTES",
    "DEFAULT_FIRST_CAP_BYTES",
    "Bucket",
    "observe_ready_s",
    "plan_buckets",
]
