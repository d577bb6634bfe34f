"""Two bandwidths of an all-reduce, as nccl-tests prints them."""

from .predict import BYTES_PER_GB


def algorithm_bandwidth_gb_per_s(size_bytes: float, seconds: float) -> float:
    """Return algbw: the tensor's bytes over the seconds, in GB/s (GB = 1e9 bytes). Local.

    What a training step feels: size / algbw is the time that it waits. Falls as the world grows
    although the links stay as they are. Raises ValueError for a size below 0 or seconds not
    above 0. Source: nccl-tests, PERFORMANCE.md. Chapter 08.
    """
    if not size_bytes >= 0:
        raise ValueError(f"size_bytes: found {size_bytes!r}, expected bytes, 0 or more")
    if not seconds > 0:
        raise ValueError(f"seconds: found {seconds!r}, expected more than 0")
    return size_bytes / seconds / BYTES_PER_GB


def bus_bandwidth_gb_per_s(size_bytes: float, seconds: float, world_size: int) -> float:
    """Return busbw: algbw x 2 (n - 1) / n, in GB/s (GB = 1e9 bytes). Local.

    Were the all-reduce a ring, each rank would send 2 (n - 1) / n times the tensor, so that
    busbw would be the rate of its link, for any number of ranks n: a number to hold against
    the hardware's. It is computed from the time, not measured on a wire. Where less is sent, it
    can exceed the link: a switch that sums (NVLink SHARP, "NVLS") takes each rank's tensor in
    once and gives the sum out once, half of a large ring's bytes, so 8 GPUs on links of 450 GB/s
    may show a busbw of 480. A world of one sends nothing: 0.

    Raises ValueError for a world below 1, and as `algorithm_bandwidth_gb_per_s`.
    Source: nccl-tests, PERFORMANCE.md. Chapter 08.
    """
    if not world_size >= 1:
        raise ValueError(f"world_size: found {world_size!r}, expected 1 or more")
    ring_share = 2 * (world_size - 1) / world_size
    return algorithm_bandwidth_gb_per_s(size_bytes, seconds) * ring_share
