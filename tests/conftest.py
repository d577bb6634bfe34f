"""Ranks of the tests start light: with the helpers loaded, and without their test's module.

A function of a test module would travel by name, and each rank of each launch would import that
module, and pytest with it, which takes more of a core than most of what it is to run there.
"""

import os

# Two workers of pytest share two cores, and what they compute is small: threads that wait for
# each other would only spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import cloudpickle
import pytest

from helpers.launch import fork_server

#: What ranks of the tests use most, and import in no time once the fork server holds it.
USED_MOST = [
    "helpers.collectives",
    "helpers.compare",
    "helpers.data_parallel",
    "helpers.exercises",
    "helpers.link",
    "helpers.shared_memory",
    "helpers.traffic",
]
fork_server.PRELOAD += USED_MOST


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        cloudpickle.register_pickle_by_value(module)
