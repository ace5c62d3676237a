"""The Triton kernel of `weighted_sum`."""

# ruff: noqa: N803 (constants of a kernel are in capitals)
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from elche.kernels.chunk import aligned, chunk_of, launch_flat, load, store


def launch(out_n: Tensor, shards_wn: Tensor, weights_w: Tensor) -> None:
    """See `elche.kernels.weighted_sum`."""
    num_shards = shards_wn.shape[0]
    launch_flat(weighted_sum_kernel, out_n, shards_wn, weights_w, num_shards, shards_wn.stride(0))


@triton.jit(
    do_not_specialize=["num_shards", "row_stride", "num_elements"],
    do_not_specialize_on_alignment=["weights_ptr"],
)
def weighted_sum_kernel(
    out_ptr,
    shards_ptr,
    weights_ptr,
    num_shards: tl.int32,
    row_stride: tl.int64,
    num_elements: tl.int64,
    CHUNK: tl.constexpr,
):
    """Set out = (w_0 * shard_0 + w_1 * shard_1) + w_2 * shard_2 ..., in float32, with 0 * anything = 0.

    One program per chunk. Shards [1, 2], [10, inf] and [3, 3]:

        weights 2, 0, 1    [5, 7]

    Bytes per element: each shard's, and 4 written.
    """
    start, count = chunk_of(num_elements, CHUNK)
    group: tl.constexpr = 128 // shards_ptr.dtype.element_ty.primitive_bitwidth  # elements in 16 bytes
    if (count == CHUNK) & aligned(out_ptr) & aligned(shards_ptr) & (row_stride % group == 0):
        row_stride = row_stride // group * group  # what AMD's compiler needs to see
        _sum(out_ptr, shards_ptr, weights_ptr, num_shards, row_stride, start, count, CHUNK, True)
    else:
        _sum(out_ptr, shards_ptr, weights_ptr, num_shards, row_stride, start, count, CHUNK, False)


@triton.jit
def _sum(
    out_ptr,
    shards_ptr,
    weights_ptr,
    num_shards,
    row_stride,
    start,
    count,
    CHUNK: tl.constexpr,
    WHOLE: tl.constexpr,
):
    total = tl.zeros([CHUNK], tl.float32)
    for shard in range(num_shards):
        weight = tl.load(weights_ptr + shard)
        x = load(shards_ptr, shard * row_stride + start, count, CHUNK, WHOLE).to(tl.float32)
        total += tl.where(weight == 0.0, 0.0, x * weight)
    store(out_ptr, start, count, total, CHUNK, WHOLE)
