"""What DistributedDataParallel says when a backward did not go as the last one, or as expected.

Where torch's class raises too, the words that scripts and tests look for are the same.
"""

from typing import TYPE_CHECKING

import torch.distributed as dist

from helpers.data_parallel.slots import Slot

if TYPE_CHECKING:
    from helpers.data_parallel.reducer import Reducer

UNFINISHED = "Expected to have finished reduction in the prior iteration before starting a new one."
CHANGED = (
    "training graph has changed in this iteration, e.g., one parameter is {first} in first "
    "iteration, but then got {then} in the second iteration. "
    "this is not compatible with static_graph set to True."
)


def unfinished(reducer: "Reducer", rank: int) -> RuntimeError:
    """A backward has ended before all buckets were sent: name the gradients that never came."""
    missing = sorted(
        (slot for bucket in reducer.buckets for slot in bucket.waiting), key=lambda s: s.index
    )
    if reducer.is_static:
        hint = f"This error indicates that your {CHANGED.format(first='used', then='unused')}"
    elif reducer.tracks_use:
        hint = (
            "Since `find_unused_parameters=True` is enabled, this likely means that not all "
            "`forward` function outputs participate in calculating loss, or that a backward "
            "ended with an error."
        )
    else:
        hint = (
            "Either parameters were not used in producing the loss, so that some ranks would wait "
            "for ever: use them, freeze them before wrapping, or find them by passing the keyword "
            "argument `find_unused_parameters=True` and by making sure that all `forward` function "
            "outputs participate in calculating loss. Or a backward ended with an error."
        )
    names = ", ".join(slot.name for slot in missing)
    indices = " ".join(str(slot.index) for slot in missing)
    text = (
        f"{UNFINISHED} {hint}\n"
        f"Parameter indices which did not receive grad for rank {rank}: {indices}\n"
        f"Parameters which did not receive grad for rank {rank}: {names}"
    )
    if dist.get_debug_level() == dist.DebugLevel.OFF:
        text += (
            "\n(torch's own messages say more if you set the environment variable "
            "TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL.)"
        )
    return RuntimeError(text)


def twice(slot: Slot) -> RuntimeError:
    return RuntimeError(
        f"Expected to mark a variable ready only once: the gradient of {slot.name} came a second "
        "time in one backward, or came though the graph from the outputs did not lead to it. "
        "Activation checkpointing does that with use_reentrant=True: pass use_reentrant=False, "
        "or static_graph=True where each iteration runs the same graph."
    )


def changed(slot: Slot) -> RuntimeError:
    return RuntimeError(
        f"Your {CHANGED.format(first='unused', then='used')}\nParameter: {slot.name}"
    )
