"""The Triton kernel of `outer_step_`."""

# ruff: noqa: N803 (constants of a kernel are in capitals)
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from elche.kernels.chunk import aligned, chunk_of, launch_flat, load, scalar_on, store


def launch(
    global_n: Tensor,
    consensus_n: Tensor,
    lr: float | Tensor,
    momentum: float | Tensor,
    velocity_n: Tensor | None,
    *,
    nesterov: bool,
) -> None:
    """See `elche.kernels.outer_step_`."""
    lr, momentum = scalar_on(lr, global_n), scalar_on(momentum, global_n)
    launch_flat(outer_step_kernel, global_n, consensus_n, velocity_n, lr, momentum, NESTEROV=nesterov)


@triton.jit(
    do_not_specialize=["num_elements"],
    do_not_specialize_on_alignment=["lr_ptr", "momentum_ptr"],
)
def outer_step_kernel(
    global_ptr,
    consensus_ptr,
    velocity_ptr,
    lr_ptr,
    momentum_ptr,
    num_elements: tl.int64,
    CHUNK: tl.constexpr,
    NESTEROV: tl.constexpr,
):
    """Take g = global - consensus; v = momentum * v + g; global -= lr * v, NESTEROV lr * (momentum * v + g).

    One program per chunk; without v, global -= lr * g. Global 10, consensus 6, v 2, lr and momentum 0.5:

        no v        8
        v           7.5 and v = 5
        Nesterov    6.75 and v = 5

    Bytes per element: global's read and written, consensus' read, v's read and written.
    """
    start, count = chunk_of(num_elements, CHUNK)
    whole = (count == CHUNK) & aligned(global_ptr) & aligned(consensus_ptr)
    if velocity_ptr is not None:
        whole &= aligned(velocity_ptr)
    lr, momentum = tl.load(lr_ptr), tl.load(momentum_ptr)
    if whole:
        _step(global_ptr, consensus_ptr, velocity_ptr, lr, momentum, start, count, CHUNK, True, NESTEROV)
    else:
        _step(global_ptr, consensus_ptr, velocity_ptr, lr, momentum, start, count, CHUNK, False, NESTEROV)


@triton.jit
def _step(
    global_ptr,
    consensus_ptr,
    velocity_ptr,
    lr,
    momentum,
    start,
    count,
    CHUNK: tl.constexpr,
    WHOLE: tl.constexpr,
    NESTEROV: tl.constexpr,
):
    x = load(global_ptr, start, count, CHUNK, WHOLE)
    step = x - load(consensus_ptr, start, count, CHUNK, WHOLE)
    if velocity_ptr is not None:
        velocity = momentum * load(velocity_ptr, start, count, CHUNK, WHOLE) + step
        store(velocity_ptr, start, count, velocity, CHUNK, WHOLE)
        step = momentum * velocity + step if NESTEROV else velocity
    store(global_ptr, start, count, x - lr * step, CHUNK, WHOLE)
