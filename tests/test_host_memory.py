"""Memory that the processes of one host share."""

import os

import pytest
import torch

from helpers import host_memory, launch


def exchange() -> list[int]:
    """Every rank writes its own slot and reads all, after a barrier."""
    import torch.distributed as dist

    from helpers.process_group import process_group

    with process_group(timeout_s=20) as ranks:
        block = host_memory.share(8 * ranks.world_size) if ranks.rank == 0 else None
        address = [block.address if block else None]
        dist.broadcast_object_list(address, src=0)
        block = block or host_memory.attach(address[0], 8 * ranks.world_size)
        slots = torch.frombuffer(block.buffer, dtype=torch.int64)
        slots[ranks.rank] = ranks.rank + 1
        dist.barrier()
        seen = slots.tolist()
        dist.barrier()
        del slots
        block.close()
        return seen


def test_all_ranks_see_each_other():
    assert launch.run_function(exchange, nproc_per_node=3) == [[1, 2, 3]] * 3


def test_no_name_and_no_descriptor_stays():
    before = set(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))
    block = host_memory.share(1 << 16)
    other = host_memory.attach(block.address, 1 << 16)
    other.buffer[:3] = b"abc"
    assert block.buffer[:3] == b"abc"
    assert set(os.listdir("/dev/shm")) == before[1]
    other.close()
    block.close()
    block.close()
    assert set(os.listdir("/proc/self/fd")) == before[0]
    with pytest.raises(RuntimeError, match="cannot be opened"):
        host_memory.attach(block.address, 1 << 16)


def test_a_tensor_outlives_close():
    block = host_memory.share(16)
    tensor = torch.frombuffer(block.buffer, dtype=torch.float64)
    block.close()
    tensor += 1
    assert tensor.tolist() == [1.0, 1.0]


def test_bad_arguments():
    with pytest.raises(ValueError, match="num_bytes=0"):
        host_memory.share(0)
    block = host_memory.share(8)
    with pytest.raises(RuntimeError, match="has 8 bytes, expected at least 9"):
        host_memory.attach(block.address, 9)
    block.close()
