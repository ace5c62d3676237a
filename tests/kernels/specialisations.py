"""Every way in which the kernels compile for tensors on 16-byte boundaries, and what each one moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from elche.kernels import (
    SlotLayout,
    cast_scale,
    drift_norms,
    lerp,
    nonfinite,
    outer_step,
    scale_accumulate,
    sum_shards,
    unpack,
)

N = 5001
KIND_BYTES = 4 + 2 + 2 + 8  # one element of each dtype that a slot's tensor may have: each has its own code
BUCKETS = {"float32": torch.float32, "float64": torch.float64}
WIRES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Specialisation:
    """A launch, and the bytes that its interior reads and writes per element.

    Attributes:
        launch: launches the kernel, given the weight and the lengths.
        reads: bytes read per element, summed over the kinds of tensors where the kernel has code for each.
        writes: the same for what is written.
        scalars: bytes of its reads that come once per chunk, by width.
        core: compiled for every target by the short tests.
    """

    launch: Callable[..., object]
    reads: int
    writes: int
    scalars: dict[int, int]
    core: bool


def specialisations() -> dict[str, Specialisation]:
    found = {}
    for bucket, dtype in BUCKETS.items():
        core, size = bucket == "float32", dtype.itemsize
        for accumulate in (False, True):
            for flagged in (False, True):
                name = f"scale_accumulate {bucket}{' +=' * accumulate}{' flagged' * flagged}"
                found[name] = Specialisation(
                    accumulating(dtype, accumulate, flagged),
                    KIND_BYTES + size * accumulate,
                    size,
                    add({8: 6}, {size: 1}, {4: 1 if flagged else 0}),  # the table's row, the weight, the flag
                    core and accumulate and flagged,
                )
        found[f"unpack {bucket}"] = Specialisation(
            unpacking(dtype), size, KIND_BYTES, add({8: 6}, {size: 1}), core
        )
        found[f"drift {bucket}"] = Specialisation(drifting(dtype), 2 * size, 0, {}, core)
        found[f"lerp {bucket}"] = Specialisation(lerping(dtype), 2 * size, size, {size: 1}, core)
        for velocity, nesterov in ((False, False), (True, False), (True, True)):
            found[f"outer_step {bucket}{' velocity' * velocity}{' nesterov' * nesterov}"] = Specialisation(
                stepping(dtype, velocity, nesterov),
                (2 + velocity) * size,
                (1 + velocity) * size,
                {size: 1 + velocity},
                core and nesterov,
            )
    found["flag_nonfinite"] = Specialisation(flagging(), KIND_BYTES, 0, {8: 5}, True)
    for wire, dtype in WIRES.items():
        found[f"cast_scale to {wire}"] = Specialisation(casting(dtype, True), 4, 2, {4: 1}, True)
        found[f"cast_scale from {wire}"] = Specialisation(casting(dtype, False), 2, 4, {4: 1}, True)
    for shards, dtype in {**WIRES, "float32": torch.float32}.items():
        found[f"weighted_sum {shards}"] = Specialisation(summing(dtype), dtype.itemsize, 4, {4: 1}, True)
    return found


def add(*counts: dict[int, int]) -> dict[int, int]:
    total: dict[int, int] = {}
    for count in counts:
        for width, times in count.items():
            total[width] = total.get(width, 0) + times
    return {width: times for width, times in total.items() if times}


def slots(dtype, numels):
    layout = SlotLayout.of(numels, dtype)
    return torch.zeros(layout.total, dtype=dtype), layout, [torch.zeros(numel) for numel in numels]


def accumulating(dtype, accumulate, flagged):
    def launch(weight=1.0, numels=(N, 3)):
        bucket_n, layout, tensors = slots(dtype, numels)
        flag = torch.zeros(len(numels) + 1)[-1:] if flagged else None  # on a 16-byte boundary or not
        scale_accumulate.launch(bucket_n, layout, tensors, weight, accumulate=accumulate, nonfinite=flag)

    return launch


def unpacking(dtype):
    def launch(weight=1.0, numels=(N, 3)):
        bucket_n, layout, tensors = slots(dtype, numels)
        unpack.launch(tensors, bucket_n, layout, weight)

    return launch


def flagging():
    def launch(weight=1.0, numels=(N, 3)):
        _, layout, tensors = slots(torch.float32, numels)
        nonfinite.launch(torch.zeros(1), tensors, layout)

    return launch


def casting(wire, to_wire):
    def launch(weight=1.0, numels=(N,)):
        bucket_n = torch.zeros(sum(numels))
        wire_n = bucket_n.to(wire)
        cast_scale.launch(*((wire_n, bucket_n) if to_wire else (bucket_n, wire_n)), weight)

    return launch


def summing(dtype):
    def launch(weight=1.0, numels=(N,)):
        out_n = torch.zeros(sum(numels))
        weights_w = torch.full((len(numels) + 1,), weight)
        sum_shards.launch(out_n, torch.zeros(len(weights_w), len(out_n), dtype=dtype), weights_w)

    return launch


def drifting(dtype):
    def launch(weight=1.0, numels=(N,)):
        drift_norms.launch(*(torch.zeros(sum(numels), dtype=dtype) for _ in range(2)))

    return launch


def stepping(dtype, velocity, nesterov):
    def launch(weight=1.0, numels=(N,)):
        global_n, consensus_n, velocity_n = (torch.zeros(sum(numels), dtype=dtype) for _ in range(3))
        given = velocity_n if velocity else None
        outer_step.launch(global_n, consensus_n, weight, weight, given, nesterov=nesterov)

    return launch


def lerping(dtype):
    def launch(weight=1.0, numels=(N,)):
        x_n, y_n = (torch.zeros(sum(numels), dtype=dtype) for _ in range(2))
        lerp.launch(x_n, y_n, weight)

    return launch
