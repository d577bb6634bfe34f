"""Plausible wrong solutions of the exercises of "All-reduce by hand"."""

import torch
import torch.distributed as dist

RIGHT = {
    "loss": ("doubling", "messages"),
    "gradients": ("ring", "bytes"),
    "bucket": ("halving_doubling", "bytes"),
}


def always_the_ring():
    return dict.fromkeys(RIGHT, ("ring", "bytes"))


def a_tree_for_what_is_small():
    return {**RIGHT, "loss": ("tree", "messages")}


def forgets_that_six_is_no_power_of_two():
    return {**RIGHT, "gradients": ("halving_doubling", "bytes")}


def counts_the_messages_only():
    return {name: (algorithm, "messages") for name, (algorithm, _) in RIGHT.items()}


def returns_names_only():
    return {name: (algorithm, "") for name, (algorithm, _) in RIGHT.items()}


def passes_whole_tensors(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    outgoing = tensor.clone()
    for _ in range(n - 1):
        incoming = torch.empty_like(outgoing)
        sent = dist.isend(outgoing, (rank + 1) % n)
        dist.irecv(incoming, (rank - 1) % n).wait()
        sent.wait()
        tensor += incoming
        outgoing = incoming


def pass_on(tensor, first, adds):
    """The chapter's half of a ring, which is right."""
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(n)
    for step in range(n - 1):
        theirs = chunks[(rank + first - step - 1) % n]
        part = torch.empty_like(theirs)
        sent = dist.isend(chunks[(rank + first - step) % n], (rank + 1) % n)
        dist.irecv(part, (rank - 1) % n).wait()
        sent.wait()
        theirs.copy_(theirs + part if adds else part)


def forgets_the_left_over(tensor):
    n = dist.get_world_size()
    whole = tensor[: len(tensor) // n * n]
    pass_on(whole, 0, True)
    pass_on(whole, 1, False)


def is_off_by_one_chunk(tensor):
    pass_on(tensor, 0, True)
    pass_on(tensor, 0, False)


def calls_all_reduce(tensor):
    dist.all_reduce(tensor)


def scatters_to_the_next_rank(tensor):
    copy = tensor.clone()
    pass_on(copy, 0, True)
    return copy.tensor_split(dist.get_world_size())[dist.get_rank()]


def works_in_place(tensor):
    pass_on(tensor, -1, True)
    return tensor.tensor_split(dist.get_world_size())[dist.get_rank()]


def reduces_all_and_cuts(tensor):
    copy = tensor.clone()
    pass_on(copy, -1, True)
    pass_on(copy, 0, False)
    return copy.tensor_split(dist.get_world_size())[dist.get_rank()]


MUTANTS = {
    "08-choose": [
        always_the_ring,
        a_tree_for_what_is_small,
        forgets_that_six_is_no_power_of_two,
        counts_the_messages_only,
        returns_names_only,
    ],
    "08-ring": [
        passes_whole_tensors,
        forgets_the_left_over,
        is_off_by_one_chunk,
        calls_all_reduce,
    ],
    "08-scatter": [scatters_to_the_next_rank, works_in_place, reduces_all_and_cuts],
}
