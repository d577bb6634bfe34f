"""Parameters whose all-reduce waits for another one's gradient, in one message of their own."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.buckets import Bucket


class DelayedGradients:
    """Averages the gradients of the parameters when the gradient of `trigger` is computed.

    Their gradients live in one flat buffer from the first forward on; one that is None after
    zero_grad comes back as zeros. Raises ValueError where they differ in dtype or device.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        trigger: Tensor,
        group: dist.ProcessGroup,
    ) -> None:
        self._bucket, self._group = Bucket(parameter for _, parameter in named_parameters), group
        trigger.register_hook(self._average)

    def lay_out(self) -> None:
        """Point each gradient into the buffer, after a forward."""
        for parameter, view in zip(self._bucket.parameters, self._bucket.views, strict=True):
            if parameter.grad is None:
                parameter.grad = view.zero_()

    @torch.no_grad()
    def _average(self, _: Tensor) -> None:
        self._bucket.buffer /= dist.get_world_size(self._group)
        dist.all_reduce(self._bucket.buffer, group=self._group)
