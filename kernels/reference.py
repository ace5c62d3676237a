"""What each function of `elche.kernels` means, in plain torch on any device: the tests' judge."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elche.kernels.layout import SlotLayout, dense_1d


@torch.no_grad()
def scale_accumulate_(
    bucket_n: Tensor,
    layout: SlotLayout,
    tensors: Sequence[Tensor | None],
    weight: float | Tensor,
    *,
    accumulate: bool,
    nonfinite: Tensor | None = None,
) -> None:
    """slot_k = weight * tensor_k, or slot_k += weight * tensor_k, each product rounded before the sum."""
    skipped = nonfinite is not None and bool(nonfinite != 0)
    factor = torch.as_tensor(weight, dtype=bucket_n.dtype, device=bucket_n.device)
    for slot, tensor in zip(layout.views(bucket_n), tensors, strict=True):
        part = torch.zeros_like(slot)
        if tensor is not None and not skipped and factor != 0:
            part = factor * dense_1d(tensor).to(bucket_n.dtype)
        slot.copy_(slot + part if accumulate else part)


@torch.no_grad()
def unpack_(
    tensors: Sequence[Tensor | None], bucket_n: Tensor, layout: SlotLayout, scale: float | Tensor
) -> None:
    """tensor_k = cast(scale * slot_k), the product rounded to the bucket's dtype before the cast."""
    factor = torch.as_tensor(scale, dtype=bucket_n.dtype, device=bucket_n.device)
    for slot, tensor in zip(layout.views(bucket_n), tensors, strict=True):
        if tensor is not None:
            dense_1d(tensor).copy_(slot * factor)


def flag_nonfinite_(flag: Tensor, tensors: Sequence[Tensor | None]) -> None:
    """Set flag = 1 if any element of any tensor is inf or nan."""
    for tensor in tensors:
        if tensor is not None and not bool(tensor.isfinite().all()):
            flag.fill_(1.0)


@torch.no_grad()
def cast_scale_(out_n: Tensor, in_n: Tensor, scale: float | Tensor) -> None:
    """Set out = cast(scale * float32(in)), the product rounded to float32 before the cast."""
    out_n.copy_(in_n.float() * torch.as_tensor(scale, dtype=torch.float32, device=in_n.device))


@torch.no_grad()
def weighted_sum(shards_wn: Tensor, weights_w: Tensor) -> Tensor:
    """Sum of weight * float32(shard), one after the other, each product rounded; 0 * anything = 0."""
    total_n = torch.zeros(shards_wn.shape[1], device=shards_wn.device)
    for shard_n, weight in zip(shards_wn, weights_w, strict=True):
        if weight != 0:
            total_n = total_n + shard_n.float() * weight
    return total_n


@torch.no_grad()
def drift(pre_n: Tensor, post_n: Tensor) -> Tensor:
    """[||pre||, ||post||, ||pre - post||] in float64."""
    pre_n, post_n = pre_n.double(), post_n.double()
    return torch.stack([(x * x).sum().sqrt() for x in (pre_n, post_n, pre_n - post_n)])


@torch.no_grad()
def outer_step_(
    global_n: Tensor,
    consensus_n: Tensor,
    lr: float | Tensor,
    *,
    momentum: float | Tensor = 0.0,
    velocity_n: Tensor | None = None,
    nesterov: bool = False,
) -> None:
    """Set v = momentum * v + g, global -= lr * (v or momentum * v + g), where g = global - consensus."""
    lr, momentum = (torch.as_tensor(x, dtype=global_n.dtype, device=global_n.device) for x in (lr, momentum))
    step_n = gradient_n = global_n - consensus_n
    if velocity_n is not None:
        velocity_n.copy_(momentum * velocity_n + gradient_n)
        step_n = momentum * velocity_n + gradient_n if nesterov else velocity_n
    global_n.copy_(global_n - lr * step_n)


@torch.no_grad()
def lerp_(x_n: Tensor, y_n: Tensor, weight: float | Tensor) -> None:
    """Set x += weight * (y - x), from 0.5 on x = y - (1 - weight) * (y - x); at 0 and 1 exactly x and y."""
    weight = torch.as_tensor(weight, dtype=x_n.dtype, device=x_n.device)
    if weight == 1:
        x_n.copy_(y_n)
    elif weight != 0:
        apart_n = y_n - x_n
        x_n.copy_(x_n + weight * apart_n if weight < 0.5 else y_n - (1 - weight) * apart_n)
