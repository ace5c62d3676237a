"""Sums in a wire type: rounded as little as it must be, finite, and the same bits on every rank."""

from __future__ import annotations

import pytest
import torch

from elche.comm import memory
from elche.training.transport import AloneTransport, HostTransport
from elche.training.wire import Compression, Wire, WireSum, _unit

DTYPES = [torch.bfloat16, torch.float16]
EPS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # half a unit in the last place


def summed(n, dtype, bucket_of):
    """By rank: the sum, and what was rounded off."""

    def one(comm):
        own_n = bucket_of(comm.rank)
        before, sum_n, lost_n = own_n.clone(), torch.full_like(own_n, 7.0), torch.full_like(own_n, 7.0)
        WireSum(HostTransport(comm), dtype, own_n).all_reduce(own_n, sum_n, lost_n)
        assert torch.equal(own_n, before) or not own_n.isfinite().all()
        return sum_n, lost_n

    return memory.run(n, one, timeout_seconds=30)


def random_bucket(numel, spread=1.0):
    def bucket_of(rank):
        generator = torch.Generator().manual_seed(rank)
        return torch.randn(numel, generator=generator) * spread

    return bucket_of


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("numel", [0, 1, 7, 8, 33, 1000, 5001])
def test_the_sum_is_that_of_float32_within_two_roundings(n, numel, dtype):
    bucket_of = random_bucket(numel)
    outcomes = summed(n, dtype, bucket_of)
    parts = torch.stack([bucket_of(rank).double() for rank in range(n)])
    exact, bound = parts.sum(0), EPS[dtype] * (parts.abs().sum(0) + parts.sum(0).abs()) * 1.01 + 1e-6
    for sum_n, _ in outcomes:
        assert torch.equal(sum_n, outcomes[0][0])
        assert bool(((sum_n.double() - exact).abs() <= bound).all())


def test_four_times_thirty_thousand_is_finite_in_float16():
    for sum_n, _ in summed(4, torch.float16, lambda rank: torch.full((100,), 3e4)):
        torch.testing.assert_close(sum_n, torch.full((100,), 1.2e5), rtol=2 * EPS[torch.float16], atol=0)


@pytest.mark.parametrize("value", [1e-7, 1e-30, 1e-37, 3e38 / 5])
def test_small_and_large_numbers_are_kept_in_both(value):
    for dtype in DTYPES:
        for sum_n, _ in summed(4, dtype, lambda rank: torch.full((10,), value)):
            torch.testing.assert_close(sum_n, torch.full((10,), 4 * value), rtol=2 * EPS[dtype], atol=0)


def test_a_rank_of_tiny_gradients_is_not_flushed_by_one_of_large():
    """Each rank's bucket has its own power of two."""

    def bucket_of(rank):
        return torch.cat([torch.zeros(8), torch.full((8,), 1e-6)]) if rank else torch.full((16,), 4096.0)

    (sum_n, lost_n), *_ = summed(2, torch.float16, bucket_of)
    assert bool((sum_n == 4096.0).all())
    assert float(lost_n.abs().max()) <= 1.01e-6


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_inf_and_nan_reach_every_rank_and_are_never_owed(dtype):
    def bucket_of(rank):
        return torch.tensor([1.0, float("inf"), float("nan"), 2.0] if rank == 1 else [1.0, 1.0, 1.0, 2.0])

    for sum_n, lost_n in summed(3, dtype, bucket_of):
        assert sum_n[[0, 3]].tolist() == [3.0, 6.0]
        assert sum_n[1].item() == float("inf")
        assert bool(sum_n[2].isnan())
        assert bool(lost_n.isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_what_was_rounded_off_is_what_the_sum_lacks(n, dtype):
    bucket_of = random_bucket(777)
    outcomes = summed(n, dtype, bucket_of)
    exact = sum(bucket_of(rank).double() for rank in range(n))
    owed = sum(lost_n.double() for _, lost_n in outcomes)
    torch.testing.assert_close(outcomes[0][0].double() + owed, exact, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_bucket_may_be_summed_where_it_is(dtype):
    def one(comm):
        own_n = random_bucket(100)(comm.rank)
        summing, outcomes = WireSum(HostTransport(comm), dtype, own_n), []
        for sum_n in (torch.empty(100), own_n):
            summing.all_reduce(own_n, sum_n, lost_n := torch.empty(100))
            outcomes.append(torch.cat([sum_n, lost_n]))
        return outcomes

    for apart, in_place in memory.run(3, one, timeout_seconds=30):
        assert torch.equal(apart, in_place)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_with_feedback_many_rounded_windows_add_up_to_the_exact_sum(dtype):
    """Without it the mean of 200 equal windows is off by the rounding of one; with it by 1/200 of that."""
    value = 1.0 + 0.3 * EPS[dtype]  # always rounded to 1

    def one(comm):
        summing = WireSum(HostTransport(comm), dtype, torch.empty(64))
        plain, fed, owed = torch.zeros(64), torch.zeros(64), torch.zeros(64)
        for _ in range(200):
            sum_n = torch.empty(64)
            summing.all_reduce(torch.full((64,), value), sum_n)
            plain += sum_n
            summing.all_reduce(torch.full((64,), value) + owed, sum_n, owed)
            fed += sum_n
        return (plain / 200 / comm.size - value).abs().max(), (fed / 200 / comm.size - value).abs().max()

    for plain, fed in memory.run(2, one, timeout_seconds=30):
        assert plain > 0.29 * EPS[dtype]
        assert fed < 0.05 * EPS[dtype]


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([1.0, -0.5], 2.0**-14),
        ([0.5, -3e4], 1.0),
        ([-65536.0], 4.0),
        ([3e38], 2.0**113),
        ([1e-38, 0.0], 2.0**-126),
        ([1e-45], 2.0**-126),
        ([-0.0, 0.0], 2.0**-126),
        ([1e30, float("inf")], 1.0),
        ([-float("inf"), 1e-30], 1.0),
        ([1e30, float("nan")], 1.0),
        ([1e30, -float("nan")], 1.0),
    ],
)
def test_float16_is_divided_by_a_power_of_two_that_brings_the_largest_from_2_14_to_2_15(values, unit):
    value_n = torch.tensor(values)
    assert _unit(value_n, torch.float16).item() == unit
    assert _unit(value_n, torch.bfloat16).item() == 1.0


def test_feedback_is_for_what_is_rounded():
    assert Compression.fp16.with_error_feedback().error_feedback
    assert not Compression.none.with_error_feedback().error_feedback


def summed_alone(wire, value):
    sum_n = torch.zeros(1)
    wire.all_reduce(AloneTransport(), (0,), torch.tensor([value]), sum_n)
    return sum_n.item()


@pytest.mark.parametrize(("is_used", "expected"), [(True, 1.0), (False, 1.0 + 2.0**-7)])
def test_a_sum_that_is_not_used_leaves_what_was_owed(is_used, expected):
    wire = Wire(Compression.bf16.with_error_feedback())
    assert summed_alone(wire, 1.0 + 2.0**-9) == 1.0
    wire.settle(is_used=True)
    assert summed_alone(wire, 0.0) == 2.0**-9, "the debt is paid"
    wire.settle(is_used=is_used)
    assert summed_alone(wire, 1.0 + 2.0**-9 + 2.0**-10) == expected


def test_what_is_owed_can_be_forgotten():
    wire = Wire(Compression.bf16.with_error_feedback())
    assert summed_alone(wire, 1.0 + 2.0**-9) == 1.0
    wire.settle(is_used=True)
    wire.forget()
    assert summed_alone(wire, 0.0) == 0.0
