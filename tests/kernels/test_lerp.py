"""One flat tensor drawn towards another."""

from __future__ import annotations

import math

import pytest
import torch
from sides import FASTEST, SENTINEL, SIDES, SIZES, WITH_TRITON, draw, hosted, tensor

from elche import kernels
from elche.errors import ConfigError
from elche.kernels import reference

BUCKETS = [torch.float32, torch.float64]


@SIDES
@pytest.mark.parametrize("dtype", BUCKETS)
@pytest.mark.parametrize(
    ("weight", "expected"), [(0.25, [1.5, -0.5]), (0.75, [2.5, 2.5]), (0.0, [1.0, -2.0]), (1.0, [3.0, 4.0])]
)
def test_a_worked_example(side, weight, expected, dtype):
    for given in (weight, tensor(weight)):
        x_n = tensor([1.0, -2.0], dtype)
        side.lerp_(x_n, tensor([3.0, 4.0], dtype), given)
        assert x_n.tolist() == expected


# The interpreter's numpy computes both sides of a choice, and warns of inf * 0.
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@SIDES
def test_weight_0_keeps_and_weight_1_takes_whatever_the_other_holds(side):
    x_n = tensor([1.0, 2.0])
    side.lerp_(x_n, tensor([math.inf, math.nan]), 0.0)
    assert x_n.tolist() == [1.0, 2.0]
    broken_n = tensor([math.inf, math.nan])
    side.lerp_(broken_n, x_n, 1.0)
    assert broken_n.tolist() == [1.0, 2.0]
    side.lerp_(x_n, tensor([math.inf, 2.0]), 0.25)
    assert x_n.tolist() == [math.inf, 2.0]


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("weight", [1e-8, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("dtype", BUCKETS)
@pytest.mark.parametrize("n", SIZES)
def test_any_tensors(n, dtype, weight, offset):
    """Exact where nothing is fused; FMA leaves out the rounding of the product."""
    y_n, mine_n, judge_n = draw(n, dtype, 2, offset), draw(n, dtype, 1, offset), draw(n, dtype, 1, offset)
    FASTEST.lerp_(mine_n, y_n, weight)
    reference.lerp_(judge_n, y_n, weight)
    bound = 0.0 if WITH_TRITON else 4 * torch.finfo(dtype).eps  # of numbers below 8
    torch.testing.assert_close(mine_n, judge_n, rtol=bound, atol=bound)


def test_what_lies_beside_an_unaligned_tensor():
    x_n, host = hosted(5001, torch.float32)
    FASTEST.lerp_(x_n, draw(5001), 1.0)
    assert [host[0], host[-1]] == [SENTINEL, SENTINEL]
    assert torch.equal(x_n, draw(5001))


@pytest.mark.parametrize("weight", [-0.1, 1.1, math.nan])
def test_a_weight_beyond_0_to_1_is_refused(weight):
    with pytest.raises(ConfigError, match=f"weight: {weight} is not from 0 to 1"):
        kernels.lerp_(torch.zeros(2), torch.zeros(2), weight)


@pytest.mark.parametrize(
    ("x_n", "y_n", "words"),
    [
        (torch.zeros(2), torch.zeros(3), r"\(2,\).*\(3,\)"),
        (torch.zeros(2), torch.zeros(2).double(), "one dtype"),
        (torch.zeros(2).bfloat16(), torch.zeros(2).bfloat16(), "bfloat16"),
    ],
)
def test_bad_input_is_refused_by_name(x_n, y_n, words):
    with pytest.raises(ConfigError, match=words):
        kernels.lerp_(x_n, y_n, 0.5)
