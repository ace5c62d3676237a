"""A bucket on its way to bfloat16 or float16 and back."""

from __future__ import annotations

import math

import pytest
import torch
from sides import FASTEST, INTERPRETED, SENTINEL, SIDES, SIZES, draw, hosted, same, tensor

from elche import kernels
from elche.errors import ConfigError
from elche.kernels import reference

WIRES = [torch.bfloat16, torch.float16]


# The interpreter's numpy warns of what becomes inf.
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@SIDES
def test_to_the_wire_rounds_to_nearest_even(side):
    """1 + 2^-11 and 1 + 3 * 2^-11 lie halfway between float16's neighbours; 65520 rounds to what it lacks."""
    bucket_n = tensor([2 + 2**-10, 2 + 3 * 2**-10, 2 * 65519.0, 2 * 65520.0, -math.inf, math.nan, 2.0**-24])
    wire_n = tensor([SENTINEL] * 7, torch.float16)
    side.cast_scale_(wire_n, bucket_n, 0.5)
    assert wire_n[:5].tolist() == [1.0, 1 + 2**-9, 65504.0, math.inf, -math.inf]
    assert math.isnan(wire_n[5])
    assert wire_n[6] == 0.0  # 2^-25, halfway between 0 and float16's smallest


@SIDES
def test_back_from_the_wire_the_product_is_of_float32(side):
    """60000 * 2 is beyond float16."""
    bucket_n = tensor([SENTINEL] * 3)
    side.cast_scale_(bucket_n, tensor([60000.0, -1.5, math.inf], torch.float16), tensor(2.0))
    assert bucket_n.tolist() == [120000.0, -3.0, math.inf]


@pytest.mark.parametrize("scale", [0.0, 1.0, 0.3, 1e-8])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("n", SIZES)
def test_both_ways_have_the_reference_s_bits(n, wire, scale):
    bucket_n = draw(n)
    mine_n, judge_n = (torch.empty_like(bucket_n, dtype=wire) for _ in range(2))
    FASTEST.cast_scale_(mine_n, bucket_n, scale)
    reference.cast_scale_(judge_n, bucket_n, scale)
    # The interpreter rounds to bfloat16 its own way: up to one step of 2^-7 off.
    step = 2.0**-7 if INTERPRETED and wire == torch.bfloat16 else 0.0
    torch.testing.assert_close(mine_n, judge_n, rtol=step, atol=0.0)
    mine_n, back_n = (torch.empty_like(bucket_n) for _ in range(2))
    FASTEST.cast_scale_(mine_n, judge_n, scale)
    reference.cast_scale_(back_n, judge_n, scale)
    assert same(mine_n, back_n)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("n", [1, 17, 5001])
def test_unaligned_tensors_and_what_lies_beside_them(n, wire):
    (bucket_n, host), (wire_n, wire_host) = hosted(n, torch.float32), hosted(n, wire)
    bucket_n.copy_(torch.arange(n) % 64)
    FASTEST.cast_scale_(wire_n, bucket_n, 2.0)
    expected = [2.0 * (k % 64) for k in range(n)]
    assert wire_host.tolist() == [SENTINEL, *expected, SENTINEL]
    FASTEST.cast_scale_(bucket_n, wire_n, 1.0)
    assert host.tolist() == [SENTINEL, *expected, SENTINEL]


@pytest.mark.parametrize(
    ("out_n", "in_n", "words"),
    [
        (torch.zeros(3), torch.zeros(3), "one of the two is float32"),
        (torch.zeros(3).half(), torch.zeros(3).bfloat16(), "one of the two is float32"),
        (torch.zeros(3).half(), torch.zeros(4), r"\(3,\).*\(4,\)"),
        (torch.zeros(3).double(), torch.zeros(3).half(), "float64"),
        (torch.zeros(6).half()[::2], torch.zeros(3), "contiguous"),
    ],
)
def test_bad_input_is_refused_by_name(out_n, in_n, words):
    with pytest.raises(ConfigError, match=words):
        kernels.cast_scale_(out_n, in_n, 1.0)
