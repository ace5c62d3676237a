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
