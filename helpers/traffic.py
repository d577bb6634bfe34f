"""Count what a process asks its process groups to do: collectives, messages and bytes."""

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

#: Names that `record` takes: one for each kind of operation, whatever form it was called in.
NAMES = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter"),
    *("all_to_all", "barrier", "send", "recv"),
)

#: How the names of torch's operators begin, without underscores, and what each is counted as:
#: those of torch.distributed (c10d; its C++ reducer calls them too), and the functional ones that
#: DTensor and compiled code use. The longer of two beginnings comes first.
OPERATORS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "reducescatter": "reduce_scatter",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "monitoredbarrier": "barrier",
    "send": "send",
    "isend": "send",
    "recv": "recv",
    "irecv": "recv",
}


@dataclass
class Traffic:
    """What this process asked for. Collectives and point-to-point messages are apart.

    `collectives`: how often each was called, by name (0 for one that never was).
    `payload_bytes`: the sum over collectives of the whole vector: of an all_reduce, broadcast or
    reduce the tensor; of an all_gather or gather the gathered result (world size times what one
    rank gives); of a reduce_scatter or scatter the whole input; of an all_to_all the larger of
    input and output; of a barrier 0. (The size that nccl-tests prints. What travels for it is
    the library's choice, and not counted.)
    `messages`, `bytes_sent`: point-to-point messages that this rank sent;
    `messages_received`, `bytes_received`: those for which it posted a receive.
    """

    collectives: Counter[str] = field(default_factory=Counter)
    payload_bytes: int = 0
    messages: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    bytes_received: int = 0


@contextmanager
def count_traffic(group: dist.ProcessGroup | None = None) -> Iterator[Traffic]:
    """Yield a `Traffic` that counts what this process calls inside the block. Local.

    `group`: count this group's operations only; None counts those of every group. Blocks may
    be nested: each counts all that happens inside it. A call that raises is not counted. A rank
    that is no member of the group counts nothing.

    Counted: functions of torch.distributed; torch's DistributedDataParallel (its C++ reducer
    too: one all_reduce for each bucket; its second step also broadcasts the order of buckets);
    under an emulated link what the link reports; our collectives, in a worker thread too (read
    the counts after `wait()`). Functions that send objects are counted as what they consist of:
    all_gather_object is two all_gathers. Not counted: threads started by others.

    Every operator costs a few microseconds more inside the block. Built in chapter 08.
    """
    # a rank outside a group holds a number in its place, which has no name
    counter = _Counter(None if group is None else getattr(group, "group_name", ""))
    with counter.active():
        yield counter.traffic


def record(name: str, payload_bytes: int, group: dist.ProcessGroup | None = None) -> None:
    """Tell the counters of this thread of an operation that torch's dispatcher does not see.

    Local; for a process group that is written in Python, such as an emulated link. `name` is
    one of NAMES; `payload_bytes` is what `Traffic` defines, of a "send" or "recv" the message's
    size. `group` None is the default group. Raises ValueError for another name.
    """
    if name not in NAMES:
        raise ValueError(f"found {name!r}, expected one of {NAMES}")
    if getattr(_thread, "is_seen", False):  # on its way here it passed the dispatcher
        return
    for counter in _active():
        counter.add(name, payload_bytes, (group or dist.group.WORLD).group_name)


def carried(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` for another thread, there counted by the counters active here. Local."""
    counters = tuple(_active())

    @functools.wraps(function)
    def counted(*arguments: Any, **options: Any) -> Any:
        with ExitStack() as stack:
            for counter in counters:
                if counter not in _active():
                    stack.enter_context(counter.active())
            return function(*arguments, **options)

    return counted


_thread = threading.local()


def _active() -> list["_Counter"]:
    """The counters of this thread, outermost first."""
    if not hasattr(_thread, "counters"):
        _thread.counters = []
    return _thread.counters


@contextmanager
def _seen() -> Iterator[None]:
    """While this lasts, a group that is written in Python has nothing to tell this thread."""
    before, _thread.is_seen = getattr(_thread, "is_seen", False), True
    try:
        yield
    finally:
        _thread.is_seen = before


class _Counter:
    """One block's counts; any number of threads may add to them."""

    def __init__(self, group_name: str | None):
        self.traffic = Traffic()
        self._group_name = group_name
        self._lock = threading.Lock()

    @contextmanager
    def active(self) -> Iterator[None]:
        _active().append(self)
        try:
            with _Watch(self):
                yield
        finally:
            _active().remove(self)

    def add(self, name: str, payload_bytes: int, group_name: str) -> None:
        if self._group_name not in (None, group_name):
            return
        traffic = self.traffic
        with self._lock:
            if name == "send":
                traffic.messages += 1
                traffic.bytes_sent += payload_bytes
            elif name == "recv":
                traffic.messages_received += 1
                traffic.bytes_received += payload_bytes
            else:
                traffic.collectives[name] += 1
                traffic.payload_bytes += payload_bytes


class _Watch(TorchDispatchMode):
    """Sees each operator on its way to the backend: autograd's own threads inherit it."""

    def __init__(self, counter: _Counter):
        super().__init__()
        self._counter = counter

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.namespace not in ("c10d", "_c10d_functional"):
            return operator(*args, **(kwargs or {}))
        with _seen():
            result = operator(*args, **(kwargs or {}))
        self._add(operator, args, result)
        return result

    def _add(self, operator: Any, args: tuple, result: Any) -> None:
        plain = operator._schema.name.partition("::")[2].replace("_", "")
        name = next((OPERATORS[start] for start in OPERATORS if plain.startswith(start)), None)
        if name:  # else nothing is sent: a wait, for one
            group = _group(operator, args)
            num_bytes = _payload_bytes(name, (*args, result), group)
            self._counter.add(name, num_bytes, getattr(group, "group_name", group))


def _group(operator: Any, args: tuple) -> dist.ProcessGroup | str:
    """The group that an operator is called on; its name, where a functional one has only that."""
    names = [argument.name for argument in operator._schema.arguments]
    if "group_name" in names:
        return args[names.index("group_name")]
    return dist.ProcessGroup.unbox(args[names.index("process_group")])


def _payload_bytes(name: str, values: tuple, group: dist.ProcessGroup | str) -> int:
    """The whole vector's bytes, as `Traffic` defines it: the largest of what is given and made."""
    sizes = [size for size in map(_num_bytes, values) if size]
    if name == "barrier" or not sizes:
        return 0
    if name in ("gather", "scatter"):  # only the root holds the whole; every rank holds one part
        return min(sizes) * group.size()
    return max(sizes)


def _num_bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    return sum(map(_num_bytes, value)) if isinstance(value, list | tuple) else 0
