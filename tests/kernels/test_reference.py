"""The reference and the public functions on the CPU, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from elche import kernels
from elche.kernels import SlotLayout, reference

INF, NAN = math.inf, math.nan
LAYOUT = SlotLayout.of([3, 0, 2], torch.float32)
IMPLEMENTATIONS = pytest.mark.parametrize("kernel", [kernels, reference], ids=["cpu", "reference"])


def tensors():
    return [torch.tensor([1.0, 2.0, -3.0]), torch.zeros(0), torch.tensor([[4.0], [5.0]])]


@IMPLEMENTATIONS
@pytest.mark.parametrize(
    ("weight", "accumulate", "expected"),
    [
        (10.0, False, [10, 20, -30, 0, 40, 50, 0, 0]),
        (10.0, True, [11, 21, -29, 0, 41, 51, 0, 0]),
        (torch.tensor(0.5), False, [0.5, 1, -1.5, 0, 2, 2.5, 0, 0]),
        (torch.tensor(2.0, dtype=torch.float64), True, [3, 5, -5, 0, 9, 11, 0, 0]),
        (0.0, False, [0, 0, 0, 0, 0, 0, 0, 0]),
        (0.0, True, [1, 1, 1, 0, 1, 1, 0, 0]),
    ],
)
def test_scale_accumulate(kernel, weight, accumulate, expected):
    bucket_n = torch.tensor([1.0, 1, 1, 0, 1, 1, 0, 0])
    kernel.scale_accumulate_(bucket_n, LAYOUT, tensors(), weight, accumulate=accumulate)
    assert bucket_n.tolist() == expected


@IMPLEMENTATIONS
@pytest.mark.parametrize(
    ("accumulate", "expected"), [(False, [0, 0, 0, 0, 8, 10, 0, 0]), (True, [1, 1, 1, 0, 9, 11, 0, 0])]
)
def test_no_gradient_counts_as_zeros(kernel, accumulate, expected):
    bucket_n = torch.tensor([1.0, 1, 1, 0, 1, 1, 0, 0])
    kernel.scale_accumulate_(bucket_n, LAYOUT, [None, *tensors()[1:]], 2.0, accumulate=accumulate)
    assert bucket_n.tolist() == expected
    kernel.scale_accumulate_(bucket_n, LAYOUT, [None] * 3, 2.0, accumulate=accumulate)
    assert bucket_n.tolist() == (expected if accumulate else [0] * 8)


@IMPLEMENTATIONS
@pytest.mark.parametrize("weight", [0.0, torch.tensor(0.0), 3.0], ids=["number", "tensor", "flagged"])
def test_weight_0_and_the_flag_never_let_inf_in(kernel, weight):
    bucket_n = torch.tensor([1.0, 2, 3, 0])
    layout = SlotLayout.of([3], torch.float32)
    flag = torch.tensor([1.0]) if weight == 3.0 else None
    bad = [torch.tensor([INF, NAN, -INF])]
    kernel.scale_accumulate_(bucket_n, layout, bad, weight, accumulate=True, nonfinite=flag)
    assert bucket_n.tolist() == [1, 2, 3, 0]
    kernel.scale_accumulate_(bucket_n, layout, bad, weight, accumulate=False, nonfinite=flag)
    assert bucket_n.tolist() == [0, 0, 0, 0]
    kernel.scale_accumulate_(bucket_n, layout, bad, 1.0, accumulate=False, nonfinite=torch.zeros(1))
    assert bucket_n.isfinite().tolist() == [False, False, False, True]


@IMPLEMENTATIONS
def test_half_precision_is_scaled_in_float32(kernel):
    """30,000 * 64 does not fit float16, and 1e-7 is a subnormal of it."""
    layout = SlotLayout.of([2], torch.float32)
    bucket_n = torch.zeros(4)
    half = [torch.tensor([30000.0, 2.0**-24], dtype=torch.float16)]
    for accumulate in (False, True):
        kernel.scale_accumulate_(bucket_n, layout, half, 64.0, accumulate=accumulate)
    assert bucket_n.tolist() == [3840000.0, 2.0**-17, 0, 0]


@IMPLEMENTATIONS
def test_complex_as_real_pairs(kernel):
    layout = SlotLayout.of([4], torch.float64)
    bucket_n = torch.zeros(4, dtype=torch.float64)
    pair = [torch.tensor([1 + 2j, complex(3, INF)], dtype=torch.complex128)]
    kernel.scale_accumulate_(bucket_n, layout, pair, 2.0, accumulate=False)
    assert bucket_n.tolist() == [2, 4, 6, INF]
    kernel.unpack_(pair, bucket_n, layout, 0.25)
    assert torch.view_as_real(pair[0]).tolist() == [[0.5, 1.0], [1.5, INF]]


@IMPLEMENTATIONS
def test_unpack_rounds_to_nearest_even_once(kernel):
    """1 + 2^-8 and 1 + 3 * 2^-8 lie halfway between bfloat16's neighbours, which are 2^-7 apart."""
    layout = SlotLayout.of([3, 3, 1], torch.float32)
    sum_n = torch.tensor([2 + 2**-7, 2 + 3 * 2**-7, 140000.0, 0, 2.0, 4.0, 6.0, 0, 9.0, 0, 0, 0])
    out = [torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3), None]
    kernel.unpack_(out, sum_n.clone(), layout, 0.5)
    assert out[0].tolist() == [1.0, 1 + 2**-6, 70144.0]
    assert out[1].tolist() == [1.0, 2.0, 3.0]
    half = [torch.zeros(3, dtype=torch.float16), None, torch.zeros(())]
    kernel.unpack_(half, sum_n.clone(), layout, torch.tensor(0.5, dtype=torch.float64))
    assert half[0].tolist() == [1 + 2**-8, 1 + 3 * 2**-8, INF]
    assert half[2].tolist() == 4.5


@IMPLEMENTATIONS
def test_memory_order_of_channels_last_and_transposed(kernel):
    matrix = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()
    image = torch.arange(8.0).reshape(1, 2, 2, 2).to(memory_format=torch.channels_last)
    layout = SlotLayout.of([4, 8], torch.float32)
    bucket_n = torch.zeros(layout.total)
    kernel.scale_accumulate_(bucket_n, layout, [matrix, image], 1.0, accumulate=False)
    assert bucket_n.tolist() == [1, 2, 3, 4, 0, 4, 1, 5, 2, 6, 3, 7]
    out = [torch.empty_like(matrix), torch.empty_like(image)]
    kernel.unpack_(out, bucket_n, layout, 1.0)
    assert out[0].tolist() == [[1, 3], [2, 4]]
    assert out[1].flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


@IMPLEMENTATIONS
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64]
)
@pytest.mark.parametrize("bad", [INF, -INF, NAN])
def test_flag_nonfinite(kernel, dtype, bad):
    largest = torch.finfo(dtype).max
    given = [torch.full((n,), largest, dtype=dtype) for n in (1, 17, 5001)]
    flag = torch.zeros(1)
    kernel.flag_nonfinite_(flag, [None, *given, torch.zeros(0, dtype=dtype)])
    kernel.flag_nonfinite_(flag, [])
    assert flag.tolist() == [0]
    for tensor, at in ((given[0], 0), (given[1], 16), (given[2], 2500)):
        flag.zero_()
        tensor[at] = bad
        kernel.flag_nonfinite_(flag, given)
        assert flag.tolist() == [1]
        tensor[at] = 1.0
    kernel.flag_nonfinite_(flag, given)
    assert flag.tolist() == [1]
