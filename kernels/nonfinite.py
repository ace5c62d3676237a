"""The Triton kernel of `flag_nonfinite_`."""

# ruff: noqa: N803 (constants of a kernel are in capitals)
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from elche.kernels.chunk import aligned, load
from elche.kernels.layout import SlotLayout, real_pair
from elche.kernels.tables import launch_chunks, locate, tables_of


def launch(flag: Tensor, tensors: Sequence[Tensor | None], layout: SlotLayout | None) -> None:
    """See `elche.kernels.flag_nonfinite_`: all tensors in one launch."""
    if layout is None:
        numels = [0 if tensor is None else real_pair(tensor).numel() for tensor in tensors]
        layout = SlotLayout.of(numels, torch.float32)
    launch_chunks(flag_nonfinite_kernel, flag, tables_of(layout, tensors, flag.device))


@triton.jit(do_not_specialize_on_alignment=["flag_ptr"])
def flag_nonfinite_kernel(flag_ptr, chunks_ptr, sources_ptr, CHUNK: tl.constexpr):
    """Set flag = 1 where not all |x| < inf; several programs may write the same 1.

    One program per chunk. Tensors [3e38, 3e38] and [1, 2] leave the flag; [1, nan] or [-inf] make it 1.
    Bytes per element: the tensor's read; 40 per chunk.
    """
    address, kind, start, _, count = locate(chunks_ptr, sources_ptr)
    if address != 0:
        if kind == 0:
            _flag(flag_ptr, address, start, count, tl.float32, CHUNK)
        elif kind == 1:
            _flag(flag_ptr, address, start, count, tl.float16, CHUNK)
        elif kind == 2:
            _flag(flag_ptr, address, start, count, tl.bfloat16, CHUNK)
        else:
            _flag(flag_ptr, address, start, count, tl.float64, CHUNK)


@triton.jit
def _flag(flag_ptr, address, start, count, DTYPE: tl.constexpr, CHUNK: tl.constexpr):
    tensor_ptr = address.to(tl.pointer_type(DTYPE))
    if (count == CHUNK) & aligned(tensor_ptr):
        _raise(flag_ptr, load(tensor_ptr, start, count, CHUNK, True))
    else:
        _raise(flag_ptr, load(tensor_ptr, start, count, CHUNK, False))


@triton.jit
def _raise(flag_ptr, x):
    finite = (tl.abs(x) < float("inf")).to(tl.int32)
    if tl.min(finite, axis=0) == 0:
        tl.store(flag_ptr, 1.0)
