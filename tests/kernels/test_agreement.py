"""Buckets: Triton's kernels and the CPU's path against the reference, over counts, weights, views, inf, nan.

Both agree with it bit for bit when they overwrite and unpack. When they add, Triton's does too; the CPU may
keep a product whole (FMA), which leaves out its rounding: two ulps of numbers below 8.
"""

from __future__ import annotations

import math

import pytest
import torch
from sides import DEVICE, SIZES, WITH_TRITON, draw, same, shifted

from elche import kernels
from elche.kernels import SlotLayout, chunk, nonfinite, reference, scale_accumulate, unpack

COUNTS = {
    1: [5001],
    7: SIZES[:7],
    161: [1, 16, 3, 17, 0, 7, 33] * 23,
    321: [5, 2, 16] * 107,
    1000: [3] * 1000,
}
LONG = pytest.mark.soak
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64]
WEIGHTS = [0.0, 1.0, 1e-8, 0.3]
ADDED = 0.0 if WITH_TRITON else 2 * 8 * torch.finfo(torch.float32).eps


def scale_accumulate_(bucket_n, layout, tensors, weight, *, accumulate):
    if WITH_TRITON:
        scale_accumulate.launch(bucket_n, layout, tensors, weight, accumulate=accumulate, nonfinite=None)
    else:
        views = layout.views(bucket_n, tensors)  # as in training: what the fused step needs
        kernels.scale_accumulate_(bucket_n, layout, tensors, weight, accumulate=accumulate, views=views)


def unpack_(tensors, bucket_n, layout, scale):
    (unpack.launch if WITH_TRITON else kernels.unpack_)(tensors, bucket_n, layout, scale)


def flag_(flag, tensors, layout):
    (nonfinite.launch if WITH_TRITON else kernels.flag_nonfinite_)(flag, tensors, layout)


def gradients(numels, dtype, seed=1):
    return [draw(numel, dtype, seed + k) for k, numel in enumerate(numels)]


def layout_of(tensors):
    return SlotLayout.of([x.numel() * (2 if x.is_complex() else 1) for x in tensors], torch.float32)


def agree(batches, weights, place=torch.clone):
    """Overwrite with the first batch, add the others, unpack: on both sides, and compare after each step.

    `place` puts a bucket where it is to lie.
    """
    layout = layout_of(batches[0])
    mine_n, judge_n = (
        place(torch.zeros(layout.total, device=DEVICE)),
        torch.zeros(layout.total, device=DEVICE),
    )
    for k, (tensors, weight) in enumerate(zip(batches, weights, strict=True)):
        scale_accumulate_(mine_n, layout, tensors, weight, accumulate=k > 0)
        reference.scale_accumulate_(judge_n, layout, tensors, weight, accumulate=k > 0)
        if k == 0:
            assert same(mine_n, judge_n)
        torch.testing.assert_close(mine_n, judge_n, rtol=0.0, atol=ADDED, equal_nan=True)
    mine, judge = ([torch.zeros_like(x, dtype=torch.float32) for x in batches[0]] for _ in range(2))
    if not batches[0][0].is_complex():
        unpack_(mine, place(judge_n), layout, 0.3)
        reference.unpack_(judge, judge_n, layout, 0.3)
        assert all(same(a, b) for a, b in zip(mine, judge, strict=True))


@pytest.mark.parametrize(
    ("count", "dtype"),
    [
        pytest.param(count, dtype, marks=LONG if count > 161 and dtype != torch.float32 else ())
        for count in COUNTS
        for dtype in DTYPES
    ],
)
def test_any_number_of_tensors(count, dtype):
    assert len(COUNTS[count]) == count
    batches = [gradients(COUNTS[count], dtype, seed) for seed in (1, 2000)]
    agree(batches, [0.3, 0.7])


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize(
    "dtype", [torch.float32, *(pytest.param(dtype, marks=LONG) for dtype in DTYPES[1:])], ids=str
)
def test_any_weight(dtype, weight):
    """A number, and a 0-d tensor on the device; three batches, whose gradients lie elsewhere each time."""
    for kind in (float, lambda number: torch.tensor(number, device=DEVICE)):
        batches = [gradients(SIZES, dtype, seed) for seed in (1, 100, 200)]
        agree(batches, [kind(weight)] * 3)


# The interpreter's numpy multiplies before it selects, and warns of 0 * inf.
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_inf_and_nan_arrive_where_they_are_and_nowhere_else(weight, bad):
    first, second = gradients(SIZES, torch.float32), gradients(SIZES, torch.float32, 100)
    first[5][16] = first[9][5000] = second[11][0] = bad
    agree([first, second], [weight, weight])
    agree([second, first], [1.0, weight])


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_offset_views_channels_last_and_transposed_tensors(dtype):
    image = draw(2 * 8 * 16 * 16, dtype).view(2, 8, 16, 16)
    matrix = draw(65 * 64, dtype, 2).view(65, 64)
    views = [
        image.to(memory_format=torch.channels_last),
        matrix.t(),
        shifted(matrix),
        shifted(draw(1, dtype)),
    ]
    agree([views, [shifted(view) if view.is_contiguous() else view for view in views]], [0.3, 0.7])


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_a_bucket_that_starts_off_a_boundary(dtype):
    agree([gradients(SIZES, dtype), gradients(SIZES, dtype, 100)], [0.3, 0.7], shifted)


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_the_flag_of_tensors_that_start_off_a_boundary(dtype):
    tensors = [shifted(tensor) for tensor in gradients(SIZES, dtype)]
    flag = torch.zeros(1, device=DEVICE)
    flag_(flag, tensors, layout_of(tensors))
    assert flag.tolist() == [0]
    tensors[-1][chunk.CHUNK] = math.inf
    flag_(flag, tensors, layout_of(tensors))
    assert flag.tolist() == [1]


@pytest.mark.parametrize(
    "count", [pytest.param(count, marks=LONG if count > 321 else ()) for count in COUNTS]
)
def test_the_flag_is_raised_by_the_last_of_any_number_of_tensors(count):
    tensors = gradients(COUNTS[count], torch.float32)
    flag = torch.zeros(1, device=DEVICE)
    flag_(flag, tensors, layout_of(tensors))
    assert flag.tolist() == [0]
    tensors[-1][-1] = math.nan
    flag_(flag, tensors, layout_of(tensors))
    assert flag.tolist() == [1]
