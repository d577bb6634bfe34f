"""Wrong solutions of chapter 05 that its checks must reject."""

import torch
import torch.distributed as dist


def _with_gradients(model):
    return [param for param in model.parameters() if param.grad is not None]


def sum_for_mean(model):
    for param in _with_gradients(model):
        dist.all_reduce(param.grad)


def averages_parameters(model):
    for param in model.parameters():
        dist.all_reduce(param.data)
        param.data /= dist.get_world_size()


def divides_and_forgets_to_add(model):
    for param in _with_gradients(model):
        param.grad /= dist.get_world_size()


def of_rank_0_only(model):
    for param in _with_gradients(model):
        dist.broadcast(param.grad, src=0)


def zeros_for_none(model):
    for param in model.parameters():
        if param.grad is None:
            param.grad = torch.zeros_like(param)
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()


def under_an_if(model):
    for param in _with_gradients(model):
        if dist.get_rank() == 0:
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()


def by_name_a_tied_one_twice(model):
    for _, param in model.named_parameters(remove_duplicate=False):
        if param.grad is not None:
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()
            param.grad *= 1 + (param.grad.ndim > 1) / 2


def after_each_backward(model, window, loss_sum, total):
    for micro_batch in window:
        (loss_sum(model, micro_batch) / total).backward()
        for param in model.parameters():
            dist.all_reduce(param.grad)


def averages_a_share(model, window, loss_sum, total):
    for micro_batch in window:
        (loss_sum(model, micro_batch) / total).backward()
    for param in model.parameters():
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()


def only_the_newest(model, window, loss_sum, total):
    for micro_batch in window:
        model.zero_grad()
        (loss_sum(model, micro_batch) / total).backward()
    for param in model.parameters():
        dist.all_reduce(param.grad)


def right_but_each_time(model, window, loss_sum, total):
    sums = [torch.zeros_like(param) for param in model.parameters()]
    for micro_batch in window:
        model.zero_grad()
        (loss_sum(model, micro_batch) / total).backward()
        for total_of, param in zip(sums, model.parameters(), strict=True):
            dist.all_reduce(param.grad)
            total_of += param.grad
    for total_of, param in zip(sums, model.parameters(), strict=True):
        param.grad = total_of


def own_total(model, window, loss_sum, total):
    count = sum(len(labels) for _, labels in window)
    for micro_batch in window:
        (loss_sum(model, micro_batch) / count).backward()
    for param in model.parameters():
        dist.all_reduce(param.grad)


def _flat(model):
    params = _with_gradients(model)
    return params, torch.cat([param.grad.flatten() for param in params])


def flat_never_copied_back(model):
    _, flat = _flat(model)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()


def flat_undivided(model):
    params, flat = _flat(model)
    dist.all_reduce(flat)
    for param, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
        param.grad.copy_(part.view_as(param))


def flat_in_another_order(model):
    params, flat = _flat(model)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    params = params[::-1]
    for param, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
        param.grad.copy_(part.view_as(param))


def flat_with_room_for_all(model):
    params = list(model.parameters())
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for param, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
        if param.grad is not None:
            param.grad.copy_(part.view_as(param))


def one_for_each(model):
    for param in _with_gradients(model):
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()


MUTANTS = {
    "05-average": [
        sum_for_mean,
        averages_parameters,
        divides_and_forgets_to_add,
        of_rank_0_only,
        zeros_for_none,
        under_an_if,
        by_name_a_tied_one_twice,
    ],
    "05-window": [
        after_each_backward,
        averages_a_share,
        only_the_newest,
        right_but_each_time,
        own_total,
    ],
    "05-flat": [
        flat_never_copied_back,
        flat_undivided,
        flat_in_another_order,
        flat_with_room_for_all,
        one_for_each,
    ],
}
