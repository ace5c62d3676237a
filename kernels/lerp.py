"""The Triton kernel of `lerp_`."""

# ruff: noqa: N803 (constants of a kernel are in capitals)
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from elche.kernels.chunk import aligned, chunk_of, launch_flat, load, scalar_on, store


def launch(x_n: Tensor, y_n: Tensor, weight: float | Tensor) -> None:
    """See `elche.kernels.lerp_`."""
    launch_flat(lerp_kernel, x_n, y_n, scalar_on(weight, x_n))


@triton.jit(
    do_not_specialize=["num_elements"],
    do_not_specialize_on_alignment=["weight_ptr"],
)
def lerp_kernel(x_ptr, y_ptr, weight_ptr, num_elements: tl.int64, CHUNK: tl.constexpr):
    """Set x += weight * (y - x); from weight 0.5 on as y - (1 - weight) * (y - x), nearer to y.

    One program per chunk. x = [1, inf], y = [3, 2]:

        weight 0 [1, inf]    0.25 [1.5, nan]    1 [3, 2]

    Bytes per element: x's read and written, y's read.
    """
    start, count = chunk_of(num_elements, CHUNK)
    weight = tl.load(weight_ptr)
    if (count == CHUNK) & aligned(x_ptr) & aligned(y_ptr):
        _lerp(x_ptr, y_ptr, start, count, weight, CHUNK, True)
    else:
        _lerp(x_ptr, y_ptr, start, count, weight, CHUNK, False)


@triton.jit
def _lerp(x_ptr, y_ptr, start, count, weight, CHUNK: tl.constexpr, WHOLE: tl.constexpr):
    x = load(x_ptr, start, count, CHUNK, WHOLE)
    y = load(y_ptr, start, count, CHUNK, WHOLE)
    near = weight < 0.5
    part = tl.where(near, weight, weight - 1.0) * (y - x)
    moved = (weight != 0.0) & (weight != 1.0)
    store(x_ptr, start, count, tl.where(near, x, y) + tl.where(moved, part, 0.0), CHUNK, WHOLE)
