"""The same graph in every iteration: observed once, then relied upon."""

from collections import Counter
from collections.abc import Callable

from torch import Tensor
from torch.autograd import Variable

from helpers.data_parallel.complaints import changed
from helpers.data_parallel.reducer import Reducer
from helpers.data_parallel.slots import Slot


class StaticReducer(Reducer):
    """A Reducer that learns in its first backward which gradients come, and how often each.

    Nothing is sent before that backward has ended. From the second on a gradient counts as ready
    when it has come as often (re-entrant checkpoints accumulate a shared weight piece by piece),
    and those that never came are not waited for. Raises RuntimeError where the graph changes.
    """

    is_static = True

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **(options | {"tracks_use": True}))

    def reset(self) -> None:
        super().reset()
        self.is_recording, self._ends, self._has_gate = True, False, True
        self._times: Counter[Slot] = Counter()  # how often each gradient comes in one backward

    def before_forward(self, syncs: bool) -> None:
        super().before_forward(syncs)
        self._ends = False  # a backward that raised at its very start has recorded nothing

    def expect_gate(self, is_there: bool) -> None:
        """Note whether backward will pass the outputs' gate; else its first gradient starts it."""
        self._has_gate = is_there

    def start_recording(self) -> None:
        """Have autograd say when the first backward ends; called when the outputs' turn comes.

        Not public in torch, which has no public way to be told: its own classes use it too.
        """
        if self.is_recording and self._syncs and not self._ends:
            self._ends = True
            Variable._execution_engine.queue_callback(self._end_recording)

    def _collect(self, slot: Slot, grad: Tensor | None) -> None:
        if self.is_recording:
            if not self._has_gate:
                self.start_recording()
            if self._ends:  # else backward went round the outputs: another wrapper's
                self.is_under_way = True
                self._times[slot] += 1
            return
        if not self.is_under_way:
            self._left = self._times.copy()
            self._begin()
        if slot not in self._times:
            self.fail(changed(slot))
        self._left[slot] -= 1
        if self._left[slot] == 0:
            super()._collect(slot, grad)

    def _end_recording(self) -> None:
        self._layout.observed = list(self._times)
        self._unused = set(self.slots) - set(self._times)
        self._begin()
        for slot in self._times:
            self._filling.put(slot, slot.parameter.grad)
            slot.bucket.waiting.remove(slot)
        self._send_full_buckets()
        self.is_recording = False

    def _count_users(self, used: set[Slot]) -> Callable[[], object]:
        """Count once: the answer does not change."""
        return super()._count_users(used) if self.is_recording else bool

    def shadow(self) -> None:
        super().shadow()
        self.is_recording = False
