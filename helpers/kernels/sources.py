"""The book's kernels as they are launched for the usual dtypes: what to compile without a GPU."""

from helpers.kernels.dispatch import BLOCK
from helpers.kernels.one_shot import BLOCK as ONE_SHOT_BLOCK
from helpers.kernels.packing import CHUNK
from helpers.kernels.ptx import Source
from helpers.kernels.squares import BLOCKS_PER_PROGRAM

JIT = "helpers.kernels.jit"


def accumulate(gradient: str = "*bf16", *, num_elements: str = "i32", **options) -> Source:
    """Return `accumulate_` for a gradient of a dtype in Triton's words."""
    arguments = {
        "accumulator": "*fp32",
        "gradient": gradient,
        "scale": "fp32",
        "num_elements": num_elements,
        "BLOCK": BLOCK,
    }
    without_fusion = {"enable_fp_fusion": False}
    return Source(
        f"{JIT}.accumulate:accumulate_kernel", arguments, **{"options": without_fusion} | options
    )


def copy(like: str = "*fp32", **options) -> Source:
    """Return the kernel of `pack` and `unpack`."""
    arguments = {"like": like, "chunks": "*i64", "scale": "fp32", "CHUNK": CHUNK, "BLOCK": BLOCK}
    return Source(f"{JIT}.pack:copy_kernel", arguments, **options)


def squares(tensor: str = "*fp32", **options) -> Source:
    arguments = {
        "tensor": tensor,
        "partial_sums": "*fp32",
        "num_elements": "i32",
        "BLOCKS_PER_PROGRAM": BLOCKS_PER_PROGRAM,
        "BLOCK": BLOCK,
    }
    return Source(f"{JIT}.squares:squares_kernel", arguments, **options)


def one_shot(out: str = "*fp32", *, world_size: int = 4, **options) -> Source:
    arguments = {
        "out": out,
        "workspaces": "*i64",
        "rank": "i32",
        "round_number": "i32",
        "num_elements": "i32",
        "late": "*i32",
        "patience": "i32",
        "WORLD_SIZE": world_size,
        "BLOCK": ONE_SHOT_BLOCK,
    }
    not_specialized = ("rank", "round_number", "patience")
    return Source(
        f"{JIT}.one_shot:one_shot_kernel", arguments, **{"unaligned": not_specialized} | options
    )
