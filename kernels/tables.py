"""What one launch needs to know about many tensors: two int64 tables on the device, and their reader.

A kernel has one program per chunk of a slot. The chunk table says which part of which slot; it follows from
the layout. The source table holds each tensor's address and dtype; it is uploaded when one of them changed.
Slots of 3, 0 and 5 elements in a float32 bucket at CHUNK = 4, where the second has no tensor:

    chunks:  slot, first element in the slot, first in the bucket (in groups of 16 bytes), elements
             (0, 0, 0, 3), (2, 0, 1, 4), (2, 4, 2, 1)
    sources: address (0: no tensor), kind (the dtype's place in KINDS)
             (0x7f0200, 0), (0, 0), (0x7f0400, 2)
"""

# mypy: allow-untyped-defs, allow-untyped-calls
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from elche.errors import UsageError
from elche.kernels.chunk import CHUNK, launch_programs
from elche.kernels.layout import (
    KINDS,
    REALS,
    SLOT_ALIGN_BYTES,
    SlotLayout,
    check_count,
    check_dense,
    check_dtypes,
    misfit,
)

Rows = list[tuple[int, int]]


@triton.jit
def locate(chunks_ptr, sources_ptr):
    """Read this program's chunk: address, kind, first element, first bucket group, elements."""
    row_ptr = chunks_ptr + 4 * tl.program_id(0)
    source_ptr = sources_ptr + 2 * tl.load(row_ptr)
    address, kind = tl.load(source_ptr), tl.load(source_ptr + 1)
    return address, kind, tl.load(row_ptr + 1), tl.load(row_ptr + 2), tl.load(row_ptr + 3)


@dataclass(frozen=True)
class Tables:
    """The two tables of one layout on one stream, and the rows that the second was made from."""

    chunks: Tensor
    sources: Tensor
    rows: Rows


def tables_of(layout: SlotLayout, tensors: Sequence[Tensor | None], device: torch.device) -> Tables:
    """Return the tables of these tensors, uploading what changed since the last call on this stream.

    The layout keeps them, by stream: what a stream uploaded only this stream reads, so its own order makes a
    table ready in time and keeps a replaced one's memory until the last kernel has read it.
    """
    stream, capturing = current_stream(device)
    rows = source_rows(layout, tensors, device)
    if capturing:
        return captured(layout, rows, device)
    tables = layout.tables.get((device, stream))
    if tables is None or tables.rows != rows:
        chunks = tables.chunks if tables else _upload(chunk_rows(layout), device)
        sources = _upload(torch.tensor(rows, dtype=torch.int64), device)
        tables = layout.tables[device, stream] = Tables(chunks, sources, rows)
    return tables


def current_stream(device: torch.device) -> tuple[int, bool]:
    """Return the handle of the stream that a launch would use, and whether a CUDA graph captures it."""
    if device.type != "cuda":
        return 0, False
    with torch.cuda.device(device):
        return torch.cuda.current_stream().cuda_stream, torch.cuda.is_current_stream_capturing()


def captured(layout: SlotLayout, rows: Rows, device: torch.device) -> Tables:
    """Return tables that every replay of a graph may read: uploaded before, and kept as long as the layout.

    An upload within the capture would need its pinned memory for ever, and memory that may not be allocated
    there. Whoever captures waits for the device first, as `torch.cuda.graph` does, so any stream's will do.
    """
    for (place, _), tables in layout.tables.items():
        if place == device and tables.rows == rows:
            layout.captured.append(tables)
            return tables
    raise UsageError(
        "a CUDA graph captures addresses, and these gradients were not at theirs in any call before: run a "
        "batch before the capture and keep its gradients (zero_grad(set_to_none=False))"
    )


def chunk_rows(layout: SlotLayout, chunk: int = CHUNK) -> Tensor:
    """Cut every slot into chunks: rows of slot, first element, first bucket group, elements."""
    group = SLOT_ALIGN_BYTES // layout.dtype.itemsize
    numels = torch.tensor(layout.numels, dtype=torch.int64)
    chunks = -(-numels // chunk)
    slot = torch.repeat_interleave(chunks)
    start = (torch.arange(len(slot)) - (chunks.cumsum(0) - chunks)[slot]) * chunk
    first = (torch.tensor(layout.offsets, dtype=torch.int64)[slot] + start) // group
    return torch.stack([slot, start, first, (numels[slot] - start).clamp(max=chunk)], dim=1)


def launch_chunks(
    kernel: Any, data: Tensor, tables: Tables, *pointers: Tensor | None, **constants: Any
) -> None:
    """Launch `kernel`, one program per chunk, on the device and stream of `data`, its first argument."""
    launch_programs(kernel, len(tables.chunks), data, tables.chunks, tables.sources, *pointers, **constants)


def source_rows(layout: SlotLayout, tensors: Sequence[Tensor | None], device: torch.device) -> Rows:
    """Give each tensor's address and kind; refuse what a kernel must not follow an address to."""
    check_count(tensors, layout)
    return [_source(tensor, numel, device) for tensor, numel in zip(tensors, layout.numels, strict=True)]


def _source(tensor: Tensor | None, numel: int, device: torch.device) -> tuple[int, int]:
    if tensor is None:
        return 0, 0
    dtype = REALS.get(tensor.dtype, tensor.dtype)
    if tensor.numel() * tensor.itemsize != numel * dtype.itemsize or tensor.device != device:
        raise misfit(numel, device, tensor)
    check_dtypes([tensor.dtype])
    check_dense(tensor)
    return tensor.data_ptr(), KINDS.index(dtype)


def _upload(table: Tensor, device: torch.device) -> Tensor:
    # Pinned memory makes the copy asynchronous; torch's pinned allocator holds it until the copy is done.
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table
