"""Shards summed in float32, in their order."""

from __future__ import annotations

import math

import pytest
import torch
from sides import DEVICE, FASTEST, SIDES, SIZES, WITH_TRITON, draw, same, tensor

from elche import kernels
from elche.errors import ConfigError
from elche.kernels import reference

SHARDS = [torch.float32, torch.bfloat16, torch.float16]


@SIDES
def test_four_ranks_of_3e4_in_float16_stay_finite_and_1e_7_is_not_flushed(side):
    shards_wn = tensor([[30000.0, 2.0**-24]] * 4, torch.float16)
    assert side.weighted_sum(shards_wn, torch.ones(4, device=DEVICE)).tolist() == [120000.0, 2.0**-22]


# The interpreter's numpy multiplies before it selects, and warns of 0 * inf.
@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply:RuntimeWarning")
@SIDES
def test_weight_0_leaves_a_shard_out_whatever_it_holds(side):
    shards_wn = tensor([[1.0, 2.0], [math.inf, math.nan], [3.0, 3.0]])
    assert side.weighted_sum(shards_wn, tensor([2.0, 0.0, 1.0])).tolist() == [5.0, 7.0]
    assert side.weighted_sum(shards_wn, tensor([0.0, 0.0, 0.0])).tolist() == [0.0, 0.0]
    assert side.weighted_sum(shards_wn, tensor([1.0, 1.0, 0.0]))[0] == math.inf


@SIDES
def test_the_order_is_that_of_the_shards(side):
    """1 + 2^25 - 2^25: 1 is lost in float32 exactly when it comes before the large one."""
    ones = torch.ones(3, device=DEVICE)
    assert side.weighted_sum(tensor([[1.0], [2.0**25], [-(2.0**25)]]), ones).tolist() == [0.0]
    assert side.weighted_sum(tensor([[2.0**25], [-(2.0**25)], [1.0]]), ones).tolist() == [1.0]


@pytest.mark.parametrize("dtype", SHARDS)
@pytest.mark.parametrize("num_shards", [1, 2, 5])
@pytest.mark.parametrize("n", SIZES)
def test_any_shards(n, num_shards, dtype):
    shards_wn = torch.stack([draw(n, dtype, seed) for seed in range(num_shards)])
    weights_w = tensor([0.3, 1e-8, 7.0, 1.0, 0.5][:num_shards])
    mine_n = FASTEST.weighted_sum(shards_wn, weights_w)
    judge_n = reference.weighted_sum(shards_wn, weights_w)
    if WITH_TRITON:
        assert same(mine_n, judge_n)
    else:  # FMA leaves out the rounding of each product, 2^-24 of it
        bound_n = (shards_wn.float().abs() * weights_w[:, None]).sum(0) * num_shards * 2.0**-23
        assert bool(((mine_n - judge_n).abs() <= bound_n).all())


@pytest.mark.parametrize("gap", [0, 1, 8])
def test_rows_that_lie_apart(gap):
    """Columns of a wider matrix, aligned or not."""
    wide = torch.arange(3 * 5008.0, device=DEVICE).reshape(3, -1) % 97
    shards_wn = wide[:, gap : gap + 4999]
    expected = [2.0 * a + 3.0 * b + 4.0 * c for a, b, c in zip(*shards_wn.tolist(), strict=True)]
    assert FASTEST.weighted_sum(shards_wn, tensor([2.0, 3.0, 4.0])).tolist() == expected


def test_a_given_result_is_written_and_returned():
    out_n = torch.full((2,), 9.0)
    result_n = kernels.weighted_sum(torch.ones(2, 2), torch.tensor([1.0, 2.0]), out=out_n)
    assert result_n is out_n
    assert out_n.tolist() == [3.0, 3.0]


@pytest.mark.parametrize(("begin", "fits"), [(0, True), (1, False), (3, False), (10, False), (11, True)])
def test_a_result_among_the_shards_is_refused(begin, fits):
    """Two rows of 3, that lie 5 apart, in the elements 3 to 10."""
    memory = torch.arange(16.0)
    shards_wn, out_n = memory[3:].as_strided((2, 3), (5, 1)), memory[begin : begin + 3]
    if not fits:
        with pytest.raises(ConfigError, match="among them"):
            kernels.weighted_sum(shards_wn, torch.ones(2), out=out_n)
    else:
        assert kernels.weighted_sum(shards_wn, torch.ones(2), out=out_n).tolist() == [11.0, 13.0, 15.0]


@pytest.mark.parametrize(
    ("shards_wn", "weights_w", "out", "words"),
    [
        (torch.zeros(2, 3), torch.zeros(3), None, "as many weights"),
        (torch.zeros(2, 3), torch.zeros(2).double(), None, "weights_w.*float64"),
        (torch.zeros(2, 3).double(), torch.zeros(2), None, "float64"),
        (torch.zeros(3, 2).t(), torch.zeros(2), None, "rows"),
        (torch.zeros(3), torch.zeros(3), None, "rows"),
        (torch.zeros(()), torch.zeros(1), None, "rows"),
        (torch.zeros(2, 3), torch.zeros(2), torch.zeros(4), "result of their length"),
    ],
)
def test_bad_input_is_refused_by_name(shards_wn, weights_w, out, words):
    with pytest.raises(ConfigError, match=words):
        kernels.weighted_sum(shards_wn, weights_w, out=out)
