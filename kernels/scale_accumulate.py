"""The Triton kernel of `scale_accumulate_`."""

# ruff: noqa: N803 (constants of a kernel are in capitals)
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from elche.kernels.chunk import aligned, load, scalar_on, store
from elche.kernels.layout import SLOT_ALIGN_BYTES, SlotLayout, check_bucket
from elche.kernels.tables import launch_chunks, locate, tables_of


def launch(
    bucket_n: Tensor,
    layout: SlotLayout,
    tensors: Sequence[Tensor | None],
    weight: float | Tensor,
    *,
    accumulate: bool,
    nonfinite: Tensor | None,
) -> None:
    """See `elche.kernels.scale_accumulate_`: all slots in one launch."""
    check_bucket(bucket_n, layout)
    launch_chunks(
        scale_accumulate_kernel,
        bucket_n,
        tables_of(layout, tensors, bucket_n.device),
        scalar_on(weight, bucket_n),
        nonfinite,
        ACCUMULATE=accumulate,
        GROUP=SLOT_ALIGN_BYTES // bucket_n.itemsize,
    )


@triton.jit(do_not_specialize_on_alignment=["weight_ptr", "nonfinite_ptr"])
def scale_accumulate_kernel(
    bucket_ptr,
    chunks_ptr,
    sources_ptr,
    weight_ptr,
    nonfinite_ptr,
    CHUNK: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """bucket[slot k] (+)= weight * tensor_k, with 0 * anything = 0 and weight = 0 where nonfinite is not 0.

    One program per chunk. Tensors [1, 2, 3] and [4, inf], float32 bucket, weight 10:

        overwrite          [10 20 30 0 | 40 inf 0 0]
        accumulate again   [20 40 60 0 | 80 inf 0 0]
        weight 0, +=       [20 40 60 0 | 80 inf 0 0]
        [1, 2, 3], None    [10 20 30 0 |  0   0 0 0]   (overwrite)

    Bytes per element: the tensor's read, the bucket's written, and read with ACCUMULATE; 48 per chunk.
    """
    address, kind, start, first, count = locate(chunks_ptr, sources_ptr)
    weight = tl.load(weight_ptr)
    if nonfinite_ptr is not None:
        weight = tl.where(tl.load(nonfinite_ptr) != 0.0, 0.0, weight)
    slot = first * GROUP
    if address == 0:
        if not ACCUMULATE:
            store(bucket_ptr, slot, count, tl.zeros([CHUNK], weight.dtype), CHUNK, False)
    elif (count == CHUNK) & (address % 16 == 0) & aligned(bucket_ptr):
        _add(bucket_ptr, slot, address, kind, start, count, weight, ACCUMULATE, CHUNK, True)
    else:
        _add(bucket_ptr, slot, address, kind, start, count, weight, ACCUMULATE, CHUNK, False)


@triton.jit
def _add(
    bucket_ptr,
    slot,
    address,
    kind,
    start,
    count,
    weight,
    ACCUMULATE: tl.constexpr,
    CHUNK: tl.constexpr,
    WHOLE: tl.constexpr,
):
    if kind == 0:
        x = load(address.to(tl.pointer_type(tl.float32)), start, count, CHUNK, WHOLE).to(weight.dtype)
    elif kind == 1:
        x = load(address.to(tl.pointer_type(tl.float16)), start, count, CHUNK, WHOLE).to(weight.dtype)
    elif kind == 2:
        x = load(address.to(tl.pointer_type(tl.bfloat16)), start, count, CHUNK, WHOLE).to(weight.dtype)
    else:
        x = load(address.to(tl.pointer_type(tl.float64)), start, count, CHUNK, WHOLE).to(weight.dtype)
    part = tl.where(weight == 0.0, 0.0, x * weight)
    if ACCUMULATE:
        part += load(bucket_ptr, slot, count, CHUNK, WHOLE)
    store(bucket_ptr, slot, count, part, CHUNK, WHOLE)
