"""Plausible wrong solutions of the exercises of "Send and receive"."""

import math

import torch
import torch.distributed as dist


def right(pattern, n):
    if pattern == "shift":
        return min(n - 1, 1)
    return (n - 1).bit_length() if pattern == "doubling" else n - 1


def all_at_once(pattern, n):
    return min(n - 1, 1) if pattern in ("fan in", "fan out") else right(pattern, n)


def receiving_is_free(pattern, n):
    return min(n - 1, 1) if pattern == "fan in" else right(pattern, n)


def one_way_at_a_time(pattern, n):
    return n if pattern == "shift" else right(pattern, n)


def a_world_of_one_sends(pattern, n):
    return 1 if pattern == "shift" else right(pattern, n)


def a_message_for_each_rank(pattern, n):
    return n if pattern in ("fan in", "fan out", "chain") else right(pattern, n)


def rounds_down(pattern, n):
    return int(math.log2(n)) if pattern == "doubling" else right(pattern, n)


def neighbours():
    n, me = dist.get_world_size(), dist.get_rank()
    return n, (me - 1) % n, (me + 1) % n


def post(to_left, to_right, tags=(0, 1, 0, 1), order=(0, 1, 2, 3), wait=True):
    n, left, right = neighbours()
    if n == 1:
        return to_right.clone(), to_left.clone()
    from_left, from_right = torch.full_like(to_right, -1.0), torch.full_like(to_left, -1.0)
    calls = [
        (dist.irecv, from_left, left),
        (dist.irecv, from_right, right),
        (dist.isend, to_right, right),
        (dist.isend, to_left, left),
    ]
    works = [calls[i][0](*calls[i][1:], tag=tags[i]) for i in order]
    for work in works if wait else works[2:]:
        work.wait()
    return from_left, from_right


def sends_first(to_left, to_right):
    n, left, right = neighbours()
    from_left, from_right = torch.empty_like(to_right), torch.empty_like(to_left)
    if n == 1:
        return to_right.clone(), to_left.clone()
    dist.send(to_right, right)
    dist.recv(from_left, left)
    dist.send(to_left, left)
    dist.recv(from_right, right)
    return from_left, from_right


def mixes_two_messages_to_one_neighbour(to_left, to_right):
    return post(to_left, to_right, tags=(0,) * 4, order=(0, 1, 3, 2))


def does_not_wait_for_what_comes(to_left, to_right):
    return post(to_left, to_right, wait=False)


def forgets_a_world_of_one(to_left, to_right):
    _, left, right = neighbours()
    from_left, from_right = torch.empty_like(to_right), torch.empty_like(to_left)
    works = [dist.irecv(from_left, left, tag=0), dist.irecv(from_right, right, tag=1)]
    works += [dist.isend(to_right, right, tag=0), dist.isend(to_left, left, tag=1)]
    for work in works:
        work.wait()
    return from_left, from_right


def swaps_left_and_right(to_left, to_right):
    return post(to_left, to_right)[::-1]


def receives_into_what_it_sends(to_left, to_right):
    from_left, from_right = post(to_left, to_right)
    to_left.copy_(from_left)
    return from_left, from_right


def place():
    return dist.get_rank(), dist.get_world_size() - 1


def sends_before_it_receives_the_next(tensor, num_chunks):
    rank, last = place()
    for chunk in tensor.tensor_split(num_chunks):
        if rank > 0:
            dist.recv(chunk, rank - 1)
        if rank < last:
            dist.send(chunk, rank + 1)


def loses_the_remainder(tensor, num_chunks):
    rank, last = place()
    size = len(tensor) // num_chunks
    sends = []
    for index in range(num_chunks):
        chunk = tensor[index * size : (index + 1) * size]
        if rank > 0:
            dist.recv(chunk, rank - 1)
        if rank < last:
            sends.append(dist.isend(chunk, rank + 1))
    for work in sends:
        work.wait()


def passes_on_before_it_has(tensor, num_chunks):
    rank, last = place()
    works = []
    for chunk in tensor.tensor_split(num_chunks):
        early = chunk.clone()  # what a send that does not wait may take with it, and here always
        if rank > 0:
            works.append(dist.irecv(chunk, rank - 1))
        if rank < last:
            works.append(dist.isend(early, rank + 1))
    for work in works:
        work.wait()


def rank_0_sends_to_all(tensor, num_chunks):
    rank, last = place()
    works = []
    for chunk in tensor.tensor_split(num_chunks):
        if rank == 0:
            works += [dist.isend(chunk, target) for target in range(1, last + 1)]
        else:
            works.append(dist.irecv(chunk, 0))
    for work in works:
        work.wait()


MUTANTS = {
    "07-pattern": [
        all_at_once,
        receiving_is_free,
        one_way_at_a_time,
        a_world_of_one_sends,
        a_message_for_each_rank,
        rounds_down,
    ],
    "07-neighbours": [
        sends_first,
        mixes_two_messages_to_one_neighbour,
        does_not_wait_for_what_comes,
        forgets_a_world_of_one,
        swaps_left_and_right,
        receives_into_what_it_sends,
    ],
    "07-chain": [
        sends_before_it_receives_the_next,
        loses_the_remainder,
        passes_on_before_it_has,
        rank_0_sends_to_all,
    ],
}
