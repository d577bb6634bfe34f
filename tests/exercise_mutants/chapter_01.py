"""Wrong solutions of chapter 01 that its checks must reject."""

import torch
import torch.distributed as dist


def place_swapped(rank, local_world_size):
    return rank % local_world_size, rank // local_world_size


def place_by_true_division(rank, local_world_size):
    return rank / local_world_size, rank % local_world_size


def place_on_one_host(rank, local_world_size):
    return 0, rank


def mean_under_the_if(loss, ranks):
    if ranks.rank == 0:
        total = loss.clone()
        dist.all_reduce(total)
        return total.item() / ranks.world_size
    return None


def mean_left_undivided(loss, ranks):
    total = loss.clone()
    dist.all_reduce(total)
    return total.item() if ranks.rank == 0 else None


def mean_everywhere(loss, ranks):
    total = loss.clone()
    dist.all_reduce(total)
    return total.item() / ranks.world_size


def mean_into_the_callers_loss(loss, ranks):
    dist.all_reduce(loss)
    return loss.item() / ranks.world_size if ranks.rank == 0 else None


def mean_of_rank_0_alone(loss, ranks):
    return loss.item() if ranks.rank == 0 else None


def named_but_unchecked(tensor, name):
    dist.all_reduce(tensor)


def named_and_raised_on_rank_0_only(tensor, name):
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, name)
    if dist.get_rank() == 0 and len(set(names)) > 1:
        raise ValueError(f"ranks name different sums: {names}")
    dist.all_reduce(tensor)


def named_and_checked_too_late(tensor, name):
    dist.all_reduce(tensor)
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, name)
    if len(set(names)) > 1:
        raise ValueError(f"ranks name different sums: {names}")


def named_and_said_without_names(tensor, name):
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, name)
    if len(set(names)) > 1:
        raise ValueError("different sums")
    dist.all_reduce(tensor)


def named_and_averaged(tensor, name):
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, name)
    if len(set(names)) > 1:
        raise ValueError(f"ranks name different sums: {names}")
    dist.all_reduce(tensor)
    torch.div(tensor, dist.get_world_size(), out=tensor)


def named_and_compared_at_both_ends(tensor, name):
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, name)
    if names[0] != names[-1]:
        raise ValueError(f"ranks name different sums: {names}")
    dist.all_reduce(tensor)


MUTANTS = {
    "01-place": [place_swapped, place_by_true_division, place_on_one_host],
    "01-mean": [
        mean_under_the_if,
        mean_left_undivided,
        mean_everywhere,
        mean_into_the_callers_loss,
        mean_of_rank_0_alone,
    ],
    "01-named": [
        named_but_unchecked,
        named_and_raised_on_rank_0_only,
        named_and_checked_too_late,
        named_and_said_without_names,
        named_and_averaged,
        named_and_compared_at_both_ends,
    ],
}
