"""A chunk is what one program works on: the address helper of every kernel, and how kernels are launched.

Loads and stores are 16 bytes wide only where the compiler knows that nothing is masked and that the address
is a multiple of 16. So each kernel asks once, of its count and its pointers, whether its chunk is whole, and
has its body compiled twice: WHOLE for the interior, masked for the tail and for tensors that start elsewhere.

Found in the PTX: `tl.multiple_of` marks the operation that made the value, wherever else that value goes, and
on one result of a call it marks them all: masked stores then write past the end. So only `load` and `store`
mark, and what they mark is a sum of their own. On AMD the mark is lost where a sum begins at a kernel's
argument, so the arguments are hinted by Triton itself: a tensor that starts elsewhere compiles once more.
"""

# ruff: noqa: N803 (constants of a kernel are in capitals)
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 2048  # 16 elements for each of 128 threads: four 16-byte loads of float32 in flight


@triton.jit
def chunk_of(num_elements, CHUNK: tl.constexpr):
    """Return where this program's chunk of a flat tensor starts, and how many elements it has."""
    start = tl.program_id(0).to(tl.int64) * CHUNK
    return start, tl.minimum(num_elements - start, CHUNK)


@triton.jit
def aligned(ptr):
    """Return whether 16-byte accesses may begin at `ptr`."""
    return ptr.to(tl.int64) % 16 == 0


@triton.jit
def load(base_ptr, start, count, CHUNK: tl.constexpr, WHOLE: tl.constexpr):
    """Read the `count` elements from base + start on; WHOLE: all CHUNK of them, from a 16-byte boundary."""
    lanes = tl.arange(0, CHUNK)
    if WHOLE:
        return tl.load(tl.multiple_of(base_ptr + start, 16) + lanes)
    else:  # noqa: RET505 (Triton compiles both without it)
        return tl.load(base_ptr + start + lanes, mask=lanes < count, other=0.0)


@triton.jit
def store(base_ptr, start, count, x, CHUNK: tl.constexpr, WHOLE: tl.constexpr):
    """Write the first `count` of `x` from base + start on, in the pointer's dtype; WHOLE: as `load`."""
    lanes = tl.arange(0, CHUNK)
    y = cast(x, base_ptr.dtype.element_ty)
    if WHOLE:
        tl.store(tl.multiple_of(base_ptr + start, 16) + lanes, y)
    else:
        tl.store(base_ptr + start + lanes, y, mask=lanes < count)


@triton.jit
def cast(x, DTYPE: tl.constexpr):
    """Round to nearest even; float64 to half precision by way of float32, as torch does."""
    if DTYPE.primitive_bitwidth == 16:
        return x.to(tl.float32).to(DTYPE)
    else:  # noqa: RET505
        return x.to(DTYPE)


def launch_programs(kernel: Any, num_programs: int, data: Tensor, *arguments: Any, **constants: Any) -> None:
    """Launch `kernel` on the device and current stream of `data`, its first argument; 0 programs: nothing."""
    if num_programs:
        with torch.cuda.device_of(data):
            kernel[(num_programs,)](
                data,
                *arguments,
                CHUNK=CHUNK,
                num_warps=8 if data.dtype == torch.float64 else 4,  # 64 bytes a thread and tensor; no spills
                enable_fp_fusion=False,  # products are rounded before sums, as in the reference
                **constants,
            )


def launch_flat(kernel: Any, data_n: Tensor, *arguments: Any, **constants: Any) -> None:
    """Launch `kernel`, one program per chunk of the flat tensor `data_n`; its length is the last argument."""
    num_elements = data_n.numel()
    launch_programs(kernel, num_chunks(num_elements), data_n, *arguments, num_elements, **constants)


def num_chunks(num_elements: int) -> int:
    """Return how many chunks `num_elements` make."""
    return -(-num_elements // CHUNK)


def scalar_on(value: float | Tensor, like: Tensor) -> Tensor:
    """Return `value` as a 0-d tensor of `like`'s device and dtype, without waiting for the device.

    A kernel reads it through a pointer: no weight is ever compiled in.
    """
    if isinstance(value, Tensor):
        return value.to(like.device, like.dtype, non_blocking=True)
    return torch.full((), float(value), dtype=like.dtype, device=like.device)
