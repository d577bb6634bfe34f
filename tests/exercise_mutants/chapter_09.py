"""Wrong solutions of chapter 09 that its checks must reject."""

from types import SimpleNamespace

tl = SimpleNamespace(constexpr=None)  # the checks bring triton.language


def no_mask(target, source, factor, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + offsets, mask=offsets < n)
    tl.store(target + offsets, factor * values)


def mask_of_the_block(target, source, factor, n, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    offsets = tl.program_id(0) * BLOCK + lanes
    values = tl.load(source + offsets, mask=lanes < n)
    tl.store(target + offsets, factor * values, mask=lanes < n)


def leaves_out_the_last_one(target, source, factor, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + offsets, mask=offsets < n - 1)
    tl.store(target + offsets, factor * values, mask=offsets < n - 1)


def forgets_the_factor(target, source, factor, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + offsets, mask=offsets < n)
    tl.store(target + offsets, values, mask=offsets < n)


def no_hint(target, address, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(address).to(tl.pointer_type(tl.float32))
    values = tl.load(source + offsets, mask=offsets < n)
    tl.store(target + offsets, values, mask=offsets < n)


def hint_on_the_offsets(target, address, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    offsets = tl.max_contiguous(tl.multiple_of(offsets, 16), 16)
    source = tl.load(address).to(tl.pointer_type(tl.float32))
    values = tl.load(source + offsets, mask=offsets < n)
    tl.store(target + offsets, values, mask=offsets < n)


def wide_without_a_mask(target, address, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = tl.multiple_of(tl.load(address).to(tl.pointer_type(tl.float32)), 16)
    tl.store(target + offsets, tl.load(source + offsets))


def forgets_the_norm():
    return {"unpack, then clip": 16, "clip while unpacking": 8}


def reads_once_for_both():
    return {"unpack, then clip": 20, "clip while unpacking": 8}


def only_one_way():
    return {"unpack, then clip": 20}


MUTANTS = {
    "09-tail": [no_mask, mask_of_the_block, leaves_out_the_last_one, forgets_the_factor],
    "09-wide": [no_hint, hint_on_the_offsets, wide_without_a_mask],
    "09-clip": [forgets_the_norm, reads_once_for_both, only_one_way],
}
