"""What torch's test module reads from the environment as it is imported; ranks inherit it."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def settings(world_size: int, timeout_s: float) -> Iterator[None]:
    """Set the variables, and keep a folder for the tests' files, while the block runs. Local.

    One world size a process: torch's module keeps what it has read.
    """
    with tempfile.TemporaryDirectory(prefix="peer_ddp_") as folder:
        for name in ("barrier", "test_dir", "init_dir"):
            (Path(folder) / name).mkdir()
        os.environ |= {
            "BACKEND": "gloo",
            "WORLD_SIZE": str(world_size),
            "GLOO_SOCKET_IFNAME": "lo",
            "TEMP_DIR": folder,
            "OMP_NUM_THREADS": "1",  # two or three ranks share the cores
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(round(timeout_s)),
        }
        yield
