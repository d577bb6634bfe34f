"""The one-shot all-reduce between ranks: right, and how long beside the backend's own."""

from statistics import median

import torch
import torch.distributed as dist

from helpers import kernels
from helpers.kernels import reference
from helpers.launch import RankFailed, run_function
from helpers.process_group import process_group
from helpers.timing import measure

SIZES_BYTES = (1_024, 16_384, 262_144, 4_194_304)
ROUNDS = 5


def one_shot_rows(device: torch.device, sizes_bytes: tuple[int, ...] = SIZES_BYTES) -> list[dict]:
    """Return what ranks find: one a GPU; two on one GPU, or on the CPU, where there is no more.

    Local; it starts its ranks. A rank that fails is a row that says how.
    """
    num_gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    shares_gpu = num_gpus == 1
    # torch's own switch for several ranks on one GPU; its tests use it
    environment = {"TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"} if shares_gpu else {}
    world_size = max(2, min(num_gpus, 8))
    arguments = str(device) if shares_gpu else None, sizes_bytes
    try:
        found = run_function(
            _on_a_rank, *arguments, nproc_per_node=world_size, timeout_s=90, env=environment
        )
    except RankFailed as failed:
        return [{"world_size": world_size, "shares_gpu": shares_gpu, "failed": str(failed)}]
    return [{"world_size": world_size, "shares_gpu": shares_gpu} | row for row in found[0]]


def _on_a_rank(device: str | None, sizes_bytes: tuple[int, ...]) -> list[dict]:
    with process_group() as ranks:
        where = torch.device(device) if device else ranks.device
        return [_row(size_bytes, where, ranks.backend) for size_bytes in sizes_bytes]


def _row(size_bytes: int, device: torch.device, backend: str) -> dict:
    generator = torch.Generator().manual_seed(dist.get_rank())
    tensor = torch.randn(size_bytes // 4, generator=generator)
    expected = tensor.clone()
    reference.all_reduce_one_shot(expected)  # on the CPU, over gloo
    tensor = tensor.to(device)
    kernels.all_reduce_one_shot(tensor)
    is_right = torch.tensor(torch.equal(tensor.cpu(), expected))
    dist.all_reduce(is_right, dist.ReduceOp.MIN)
    tensor.zero_()
    work = {
        "ours": lambda: kernels.all_reduce_one_shot(tensor),
        "backend": lambda: dist.all_reduce(tensor),
    }
    samples: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(ROUNDS):
        for name, call in work.items():
            timing = measure(call, warmup=2, repeat=5, device=device, before=dist.barrier)
            samples[name].append(timing.median_s)
    return {
        "size_bytes": size_bytes,
        "device": str(device),
        "backend": backend,
        "is_kernel": kernels.runs_triton(tensor),
        "equal_bits": bool(is_right),
        "seconds": {name: median(seconds) for name, seconds in samples.items()},
        "samples_s": samples,
    }
