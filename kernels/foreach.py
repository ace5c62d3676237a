"""The CPU path: the fastest plain torch for each function of `elche.kernels`, as measured.

Microseconds on one thread for 10 small tensors (22 k elements in all) | 160 of 10 to 10 k | 1,000 of 1 k |
10 of 2.6 M:

    overwrite    zeros, and the fused step         5 |  139 |  286 |  8300
                 copy all, scale the bucket        7 |  153 |  400 |  8450
                 one product into each slot       10 |  204 |  975 |  5150
    accumulate   a fused step of SGD               4 |  101 |  230 |  5400
                 _foreach_add_ with alpha          6 |  133 |  425 |  5200
                 the same in a Python loop        11 |  234 | 1120 |  5200
    unpack       copy all, scale all               9 |  196 |  677 |  8240
                 one product into each tensor     10 |  207 |  967 |  5150
    inf or nan   GradScaler's check                4 |   87 |  254 |  3400
                 a sum of each                    12 |  213 | 1159 |  2330
                 isfinite of each                 81 | 1900 | 6700 | 40100

The fused step loses its lead over _foreach_add_ beyond 16 k elements: 151 | 177 for 100 tensors of 16 k,
458 | 457 for 100 of 32 k, 1236 | 1037 for 160 of 41 k on average. A product with a 0-d tensor takes 1 us, one
with a Python number 2 us; torch.no_grad() takes 1 us, to look at requires_grad of 10 tensors 0.3 us.

Milliseconds for flat tensors of 26 M elements in whole passes, whose temporaries the system hands out page by
page | by blocks:

    to bfloat16 47 | 7    weighted sum of 4 in bfloat16 157 | 22    outer step with Nesterov 70 | 19
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeGuard

import torch
from torch import Tensor

from elche.kernels.layout import (
    REALS,
    SlotLayout,
    Views,
    check_count,
    check_dtypes,
    dense_1d,
    misfit,
    real_pair,
)

LARGE = 16_384  # mean elements of a slot from which fewer passes beat fewer calls
BLOCK = 131_072  # elements of a pass over flat tensors: 512 KiB of float32 stay in the cache of a core


def scale_accumulate_(
    bucket_n: Tensor,
    layout: SlotLayout,
    tensors: Sequence[Tensor | None],
    weight: float | Tensor,
    *,
    accumulate: bool,
    nonfinite: Tensor | None = None,
    views: Views | None = None,
) -> None:
    """See `elche.kernels.scale_accumulate_`."""
    factor = 0.0 if nonfinite is not None and nonfinite.item() != 0.0 else float(weight)
    small = bucket_n.numel() <= LARGE * len(tensors)
    if small and views and _by_address(tensors, views, bucket_n.dtype):
        if not accumulate:
            bucket_n.zero_()  # and a product more is the product, but for the sign of a zero
        if factor != 0.0:
            _add_(views, tensors, factor)
    else:
        _by_strides(bucket_n, layout, tensors, factor, views, accumulate=accumulate)


def _by_address(
    tensors: Sequence[Tensor | None], slots: Views, dtype: torch.dtype
) -> TypeGuard[list[Tensor]]:
    """Return whether the fused step may read the tensors: it asks neither for strides nor for lengths."""
    if not isinstance(tensors, list) or len(tensors) != len(slots) or not slots.contiguous:
        return False
    for tensor, numel in zip(tensors, slots.numels, strict=True):
        if (
            tensor is None
            or tensor.dtype is not dtype
            or tensor.numel() != numel
            or not tensor.is_contiguous()
            or tensor.requires_grad
            or tensor.is_neg()
        ):
            return False
    return True


def _add_(slots: list[Tensor], tensors: list[Tensor], factor: float) -> None:
    """Step with SGD, slot -= -factor * tensor: bit for bit what `_foreach_add_` with alpha gives."""
    torch._fused_sgd_(
        slots, tensors, [], lr=-factor, weight_decay=0.0, momentum=0.0, dampening=0.0,
        nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip


@torch.no_grad()
def _by_strides(
    bucket_n: Tensor,
    layout: SlotLayout,
    tensors: Sequence[Tensor | None],
    factor: float,
    views: Views | None,
    *,
    accumulate: bool,
) -> None:
    """Do what the fused step is not for: large tensors, other dtypes and orders, and None."""
    slots, reals = _pairs(bucket_n, layout, tensors, views)
    if not accumulate and (factor == 0.0 or len(reals) < len(tensors)):
        bucket_n.zero_()
    if factor == 0.0 or not reals:
        return
    if accumulate:
        torch._foreach_add_(slots, reals, alpha=factor)
    # Half precision times a 0-d tensor would be rounded to half precision on its way to `out`.
    elif bucket_n.numel() > LARGE * len(reals) and _dtypes(reals) == {bucket_n.dtype}:
        factor_0d = torch.full((), factor, dtype=bucket_n.dtype)
        for slot, real in zip(slots, reals, strict=True):
            torch.mul(real, factor_0d, out=slot)
    else:
        torch._foreach_copy_(slots, reals)
        bucket_n.mul_(factor)


@torch.no_grad()
def unpack_(
    tensors: Sequence[Tensor | None],
    bucket_n: Tensor,
    layout: SlotLayout,
    scale: float | Tensor,
    *,
    keep: bool = False,
    views: Views | None = None,
) -> None:
    """See `elche.kernels.unpack_`."""
    slots, reals = _pairs(bucket_n, layout, tensors, views)
    if reals and not keep and bucket_n.numel() <= LARGE * len(reals):
        bucket_n.mul_(float(scale))
        torch._foreach_copy_(reals, slots)
    else:
        factor_0d = torch.full((), float(scale), dtype=bucket_n.dtype)
        for slot, real in zip(slots, reals, strict=True):
            torch.mul(slot, factor_0d, out=real)


@torch.no_grad()
def flag_nonfinite_(flag: Tensor, tensors: Sequence[Tensor | None]) -> None:
    """See `elche.kernels.flag_nonfinite_`."""
    reals = _reals([tensor for tensor in tensors if tensor is not None])
    large = sum(real.numel() for real in reals) > LARGE * len(reals)
    # Finite sums have finite terms only. Any other sum may have overflowed: the exact check decides.
    if reals and not (large and all(math.isfinite(real.sum()) for real in reals)):
        # A product with 1 leaves every bit of a finite number.
        torch._amp_foreach_non_finite_check_and_unscale_(reals, flag, torch.ones(1))


@torch.no_grad()
def cast_scale_(out_n: Tensor, in_n: Tensor, scale: float | Tensor) -> None:
    """See `elche.kernels.cast_scale_`."""
    factor = float(scale)
    if out_n.dtype == torch.float32:
        out_n.copy_(in_n).mul_(factor)
    elif factor == 1.0:
        out_n.copy_(in_n)
    else:
        for out, x in _blocks(out_n, in_n):
            out.copy_(x * factor)


@torch.no_grad()
def weighted_sum(out_n: Tensor, shards_wn: Tensor, weights_w: Tensor) -> None:
    """See `elche.kernels.weighted_sum`."""
    kept = [(shard, weight) for shard, weight in enumerate(weights_w.tolist()) if weight != 0.0]
    if not kept:
        out_n.zero_()
        return
    for out, *shards in _blocks(out_n, *(shards_wn[shard] for shard, _ in kept)):
        out.copy_(shards[0]).mul_(kept[0][1])
        for x, (_, weight) in zip(shards[1:], kept[1:], strict=True):
            out.add_(x, alpha=weight)


@torch.no_grad()
def drift(pre_n: Tensor, post_n: Tensor) -> Tensor:
    """See `elche.kernels.drift`."""
    sums = [0.0, 0.0, 0.0]
    for pre, post in _blocks(pre_n, post_n):
        for k, x in enumerate((pre, post, pre - post)):
            sums[k] += (x * x).sum().item()  # torch.dot's bits depend on where x begins; it saves an eighth
    return torch.tensor(sums, dtype=torch.float64).sqrt_()


@torch.no_grad()
def outer_step_(
    global_n: Tensor,
    consensus_n: Tensor,
    lr: float | Tensor,
    momentum: float | Tensor,
    velocity_n: Tensor | None,
    *,
    nesterov: bool,
) -> None:
    """See `elche.kernels.outer_step_`."""
    lr, momentum = float(lr), float(momentum)
    if velocity_n is None:
        for x, consensus in _blocks(global_n, consensus_n):
            x.sub_(x - consensus, alpha=lr)
        return
    for x, consensus, velocity in _blocks(global_n, consensus_n, velocity_n):
        gradient = x - consensus
        velocity.mul_(momentum).add_(gradient)
        x.sub_(gradient.add_(velocity, alpha=momentum) if nesterov else velocity, alpha=lr)


@torch.no_grad()
def lerp_(x_n: Tensor, y_n: Tensor, weight: float | Tensor) -> None:
    """See `elche.kernels.lerp_`."""
    factor = float(weight)
    if factor == 1.0:
        x_n.copy_(y_n)
    elif factor != 0.0:
        x_n.lerp_(y_n, factor)


def _blocks(*tensors_n: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut flat tensors alike: what is between the passes stays in the cache, and no whole copy is made."""
    return zip(*(torch.split(tensor_n, BLOCK) for tensor_n in tensors_n), strict=True)


def _pairs(
    bucket_n: Tensor, layout: SlotLayout, tensors: Sequence[Tensor | None], views: Views | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Slots and tensors, real and of one shape each, without those that are None."""
    check_count(tensors, layout)
    given = [tensor for tensor in tensors if tensor is not None]
    if views is None:
        views = layout.views(bucket_n)
        given = [dense_1d(tensor) for tensor in given]
    slots = [view for view, tensor in zip(views, tensors, strict=True) if tensor is not None]
    reals = _reals(given)
    for slot, real in zip(slots, reals, strict=True):
        # torch would repeat a single element all over the slot, and fetch what is on another device.
        if slot.numel() != real.numel() or not real.is_cpu:
            raise misfit(slot.numel(), slot.device, real)
    return slots, reals


def _reals(tensors: list[Tensor]) -> list[Tensor]:
    # One look at the dtypes costs half of what asking each tensor does.
    dtypes = _dtypes(tensors)
    check_dtypes(dtypes)
    return tensors if dtypes.isdisjoint(REALS) else [real_pair(tensor) for tensor in tensors]


def _dtypes(tensors: list[Tensor]) -> set[torch.dtype]:
    return {tensor.dtype for tensor in tensors}
