"""The Triton kernel of `drift`."""

# ruff: noqa: N803 (constants of a kernel are in capitals)
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from elche.kernels.chunk import aligned, chunk_of, launch_flat, load, num_chunks


def launch(pre_n: Tensor, post_n: Tensor) -> Tensor:
    """See `elche.kernels.drift`: sums of each chunk by the kernel, their sum by torch, no atomics."""
    chunks = num_chunks(pre_n.numel())
    sums_pk = torch.empty(chunks, 3, dtype=torch.float64, device=pre_n.device)
    launch_flat(drift_kernel, pre_n, post_n, sums_pk)
    return sums_pk.sum(0).sqrt_()


@triton.jit(
    do_not_specialize=["num_elements"],
    do_not_specialize_on_alignment=["sums_ptr"],
)
def drift_kernel(pre_ptr, post_ptr, sums_ptr, num_elements: tl.int64, CHUNK: tl.constexpr):
    """Set sums[program] = sum of pre^2, of post^2 and of (pre - post)^2 over the program's chunk.

    One program per chunk; a fixed tree within it. pre = [3, 4], post = [3, 0]:

        sums [25, 9, 16]: norms 5, 3, 4

    Bytes per element: the two reads; 24 per chunk.
    """
    start, count = chunk_of(num_elements, CHUNK)
    if (count == CHUNK) & aligned(pre_ptr) & aligned(post_ptr):
        _sums(pre_ptr, post_ptr, sums_ptr, start, count, CHUNK, True)
    else:
        _sums(pre_ptr, post_ptr, sums_ptr, start, count, CHUNK, False)


@triton.jit
def _sums(pre_ptr, post_ptr, sums_ptr, start, count, CHUNK: tl.constexpr, WHOLE: tl.constexpr):
    pre = load(pre_ptr, start, count, CHUNK, WHOLE)
    post = load(post_ptr, start, count, CHUNK, WHOLE)
    row_ptr = sums_ptr + 3 * tl.program_id(0).to(tl.int64)
    tl.store(row_ptr, tl.sum(pre * pre).to(tl.float64))
    tl.store(row_ptr + 1, tl.sum(post * post).to(tl.float64))
    tl.store(row_ptr + 2, tl.sum((pre - post) * (pre - post)).to(tl.float64))
