"""The Triton kernel of `cast_scale_`."""

# ruff: noqa: N803 (constants of a kernel are in capitals)
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from elche.kernels.chunk import aligned, chunk_of, launch_flat, load, scalar_on, store


def launch(out_n: Tensor, in_n: Tensor, scale: float | Tensor) -> None:
    """See `elche.kernels.cast_scale_`."""
    bucket_n = out_n if out_n.dtype == torch.float32 else in_n
    launch_flat(cast_scale_kernel, out_n, in_n, scalar_on(scale, bucket_n))


@triton.jit(
    do_not_specialize=["num_elements"],
    do_not_specialize_on_alignment=["scale_ptr"],
)
def cast_scale_kernel(out_ptr, in_ptr, scale_ptr, num_elements: tl.int64, CHUNK: tl.constexpr):
    """Set out = cast(scale * float32(in)), to nearest even.

    One program per chunk. in = [1, 1.00390625, 70000] of float32, scale 1:

        bfloat16 [1, 1, 70144]    float16 [1, 1.00390625, inf]

    Bytes per element: 4 and 2, whichever way.
    """
    start, count = chunk_of(num_elements, CHUNK)
    scale = tl.load(scale_ptr)
    if (count == CHUNK) & aligned(out_ptr) & aligned(in_ptr):
        _cast_scale(out_ptr, in_ptr, start, count, scale, CHUNK, True)
    else:
        _cast_scale(out_ptr, in_ptr, start, count, scale, CHUNK, False)


@triton.jit
def _cast_scale(out_ptr, in_ptr, start, count, scale, CHUNK: tl.constexpr, WHOLE: tl.constexpr):
    x = load(in_ptr, start, count, CHUNK, WHOLE)
    store(out_ptr, start, count, x.to(tl.float32) * scale, CHUNK, WHOLE)
