"""The Triton kernel of `unpack_`."""

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
    tensors: Sequence[Tensor | None], bucket_n: Tensor, layout: SlotLayout, scale: float | Tensor
) -> None:
    """See `elche.kernels.unpack_`: all slots in one launch."""
    check_bucket(bucket_n, layout)
    launch_chunks(
        unpack_kernel,
        bucket_n,
        tables_of(layout, tensors, bucket_n.device),
        scalar_on(scale, bucket_n),
        GROUP=SLOT_ALIGN_BYTES // bucket_n.itemsize,
    )


@triton.jit(do_not_specialize_on_alignment=["scale_ptr"])
def unpack_kernel(
    bucket_ptr,
    chunks_ptr,
    sources_ptr,
    scale_ptr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """tensor_k = cast(scale * bucket[slot k]), rounded to the bucket's dtype and then to the tensor's.

    One program per chunk. Bucket [10 20 30 0 | 40 1 0 0], slots of 3 and 2, scale 0.1:

        float32 [1, 2, 3] and bfloat16 [4, 0.10009765625]

    Bytes per element: the bucket's read, the tensor's written; 48 per chunk.
    """
    address, kind, start, first, count = locate(chunks_ptr, sources_ptr)
    scale = tl.load(scale_ptr)
    if address != 0:
        slot = first * GROUP
        if (count == CHUNK) & (address % 16 == 0) & aligned(bucket_ptr):
            _unpack(bucket_ptr, slot, address, kind, start, count, scale, CHUNK, True)
        else:
            _unpack(bucket_ptr, slot, address, kind, start, count, scale, CHUNK, False)


@triton.jit
def _unpack(bucket_ptr, slot, address, kind, start, count, scale, CHUNK: tl.constexpr, WHOLE: tl.constexpr):
    x = load(bucket_ptr, slot, count, CHUNK, WHOLE) * scale
    if kind == 0:
        store(address.to(tl.pointer_type(tl.float32)), start, count, x, CHUNK, WHOLE)
    elif kind == 1:
        store(address.to(tl.pointer_type(tl.float16)), start, count, x, CHUNK, WHOLE)
    elif kind == 2:
        store(address.to(tl.pointer_type(tl.bfloat16)), start, count, x, CHUNK, WHOLE)
    else:
        store(address.to(tl.pointer_type(tl.float64)), start, count, x, CHUNK, WHOLE)
