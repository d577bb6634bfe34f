"""Where the ranks of one host meet: a store on loopback, for torch's elastic agent.

The agent's own rendezvous elects leaders among hosts that may come and go. With one host it only
waits, up to 0.3 s by design, and looks at the whole call stack each time it takes a note, which
takes longer the deeper its caller stands: more than a second of a core below a notebook or pytest.
"""

import contextlib
import socket
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

BACKEND, LOOPBACK = "one-host", "127.0.0.1"


class OneHostRendezvous(RendezvousHandler):
    """One agent, group rank 0 of 1, and a store that its ranks share and no other host can reach.

    Source: the methods and their meaning, torch.distributed.elastic.rendezvous.RendezvousHandler.
    """

    use_agent_store = True

    def __init__(self, run_id: str, timeout_s: float) -> None:
        self._run_id, self._timeout = run_id, timedelta(seconds=timeout_s)
        self._store: TCPStore | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        with socket.create_server((LOOPBACK, 0)) as listening:  # port 0 takes a free one
            port = listening.getsockname()[1]
            self._store = TCPStore(
                LOOPBACK,
                port,
                is_master=True,
                timeout=self._timeout,
                wait_for_workers=False,
                master_listen_fd=listening.detach(),
            )
        store = PrefixStore(self._run_id, self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(LOOPBACK, port))

    def shutdown(self) -> bool:
        self._store = None
        return True

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._run_id

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nobody else could come."""

    def num_nodes_waiting(self) -> int:
        return 0


def _create(parameters: RendezvousParameters) -> OneHostRendezvous:
    return OneHostRendezvous(parameters.run_id, float(parameters.get("timeout")))


with contextlib.suppress(ValueError):  # registered before this module was reloaded
    rendezvous_handler_registry.register(BACKEND, _create)
