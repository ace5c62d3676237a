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
    slot = first * GROUP
    if address != 0:
        if kind == 0:
            _unpack(bucket_ptr, slot, address, start, count, scale, tl.float32, CHUNK)
        elif kind == 1:
            _unpack(bucket_ptr, slot, address, start, count, scale, tl.float16, CHUNK)
        elif kind == 2:
            _unpack(bucket_ptr, slot, address, start, count, scale, tl.bfloat16, CHUNK)
        else:
            _unpack(bucket_ptr, slot, address, start, count, scale, tl.float64, CHUNK)


@triton.jit
def _unpack(bucket_ptr, slot, address, start, count, scale, DTYPE: tl.constexpr, CHUNK: tl.constexpr):
    tensor_ptr = address.to(tl.pointer_type(DTYPE))
    if (count == CHUNK) & aligned(tensor_ptr) & aligned(bucket_ptr):
        _unpack_chunk(bucket_ptr, slot, tensor_ptr, start, count, scale, CHUNK, True)
    else:
        _unpack_chunk(bucket_ptr, slot, tensor_ptr, start, count, scale, CHUNK, False)


@triton.jit
def _unpack_chunk(
    bucket_ptr, slot, tensor_ptr, start, count, scale, CHUNK: tl.constexpr, WHOLE: tl.constexpr
):
    x = load(bucket_ptr, slot, count, CHUNK, WHOLE)
    store(tensor_ptr, start, count, x * scale, CHUNK, WHOLE)
