"""The CPU path against the reference, bit for bit where nothing forbids it."""

from __future__ import annotations

import math
import re

import pytest
import torch

from elche import kernels
from elche.errors import ConfigError
from elche.kernels import SlotLayout, reference
from elche.kernels.foreach import LARGE

SIZES = {
    "one": [5001],
    "seven": [0, 1, 3, 7, 16, 17, 1023],
    "161": [1, 16, 1024, 1025, 3, 17, 7] * 23,
    "large": [LARGE * 3 + 1, 5, LARGE + 7],
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64]


def case(sizes, dtype, bucket_dtype, whole):
    """Tensors, their layout and two equal buckets; `whole` numbers make every sum exact."""
    draw = torch.Generator().manual_seed(7)
    reals = [torch.randn(n, generator=draw) * 8 for n in SIZES[sizes]]
    tensors = [(real.round() if whole else real).to(dtype) for real in reals]
    numels = [n * (2 if dtype.is_complex else 1) for n in SIZES[sizes]]
    layout = SlotLayout.of(numels, bucket_dtype)
    mine_n, judge_n = (torch.zeros(layout.total, dtype=bucket_dtype) for _ in range(2))
    return tensors, layout, mine_n, judge_n


@pytest.mark.parametrize("with_views", [False, True])
@pytest.mark.parametrize("bucket_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_overwrite_accumulate_and_unpack_are_exact_on_whole_numbers(sizes, dtype, bucket_dtype, with_views):
    tensors, layout, mine_n, judge_n = case(sizes, dtype, bucket_dtype, whole=True)
    views = layout.views(mine_n, tensors) if with_views else None
    for accumulate, weight in ((False, 48.0), (True, 3.0), (True, 0.0)):
        kernels.scale_accumulate_(mine_n, layout, tensors, weight, accumulate=accumulate, views=views)
        reference.scale_accumulate_(judge_n, layout, tensors, weight, accumulate=accumulate)
        assert torch.equal(mine_n, judge_n)
    mine, judge = ([torch.empty_like(tensor) for tensor in tensors] for _ in range(2))
    kernels.unpack_(mine, mine_n, layout, 1 / 3, views=views)
    reference.unpack_(judge, judge_n, layout, 1 / 3)
    assert all(torch.equal(a, b) for a, b in zip(mine, judge, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_any_number_is_within_the_rounding_of_one_product(sizes, dtype):
    """Overwriting rounds as the reference does; FMA leaves out the rounding of the product, 2^-24 of it."""
    tensors, layout, mine_n, judge_n = case(sizes, dtype, torch.float32, whole=False)
    kernels.scale_accumulate_(mine_n, layout, tensors, 0.3, accumulate=False)
    reference.scale_accumulate_(judge_n, layout, tensors, 0.3, accumulate=False)
    assert torch.equal(mine_n, judge_n)
    kernels.scale_accumulate_(mine_n, layout, tensors, 0.7, accumulate=True)
    reference.scale_accumulate_(judge_n, layout, tensors, 0.7, accumulate=True)
    # A product rounded or not, then the rounding of a sum of at most 0.3 + 0.7 times the tensor.
    bound_n = (judge_n.abs() + 1e-30) * 2.0**-23
    assert bool(((mine_n - judge_n).abs() <= bound_n).all())


@pytest.mark.parametrize("with_views", [False, True])
@pytest.mark.parametrize("sizes", ["seven", "large"])
def test_missing_tensors_leave_the_others_in_place(sizes, with_views):
    tensors, layout, mine_n, judge_n = case(sizes, torch.float32, torch.float32, whole=True)
    views = layout.views(mine_n, tensors) if with_views else None
    mine_n += 1.0
    some = [tensor if k % 2 else None for k, tensor in enumerate(tensors)]
    for accumulate in (False, True):
        kernels.scale_accumulate_(mine_n, layout, some, 2.0, accumulate=accumulate, views=views)
        reference.scale_accumulate_(judge_n, layout, some, 2.0, accumulate=accumulate)
        assert torch.equal(mine_n, judge_n)


@pytest.fixture
def steps(monkeypatch):
    """Counts the fused steps, by their tensors."""
    seen = []
    inner = torch._fused_sgd_

    def counting(slots, tensors, momenta, **settings):
        seen.append(len(tensors))
        inner(slots, tensors, momenta, **settings)

    monkeypatch.setattr(torch, "_fused_sgd_", counting)
    return seen


@pytest.mark.parametrize("bucket_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("numels", "fused"),
    [
        ([7, LARGE - 8, 0, 1], True),
        ([2 * LARGE - 4, 1], True),
        ([2 * LARGE, 1], False),
        ([LARGE], True),
        ([LARGE + 1], False),
    ],
)
@pytest.mark.parametrize("bad", [1.0, math.inf, -math.inf, math.nan])
def test_the_fused_step_takes_small_tensors_and_gives_the_same(numels, fused, bad, bucket_dtype, steps):
    draw = torch.Generator().manual_seed(5)
    tensors = [torch.randn(numel, generator=draw, dtype=bucket_dtype) for numel in numels]
    tensors[0][-1] = bad
    layout = SlotLayout.of(numels, bucket_dtype)
    mine_n, judge_n = (torch.full((layout.total,), 3.0, dtype=bucket_dtype) for _ in range(2))
    views = layout.views(mine_n, tensors)
    for accumulate, weight in ((False, 0.3), (True, 0.7), (True, 0.0)):
        kernels.scale_accumulate_(mine_n, layout, tensors, weight, accumulate=accumulate, views=views)
        reference.scale_accumulate_(judge_n, layout, tensors, weight, accumulate=accumulate)
        ulps = 2 * torch.finfo(bucket_dtype).eps * accumulate
        for view, judge in zip(views, layout.views(judge_n), strict=True):
            torch.testing.assert_close(view, judge, rtol=ulps, atol=ulps, equal_nan=True)
    assert steps == ([len(numels)] * 2 if fused else [])
    kernels.scale_accumulate_(mine_n, layout, tensors, 0.0, accumulate=False, views=views)
    assert bool((mine_n == 0).all())


NOT_PLAIN = {
    "none": lambda x: None,
    "half": lambda x: x.half(),
    "double": lambda x: x.double(),
    "complex": lambda x: x[:3].to(torch.complex64),
    "transposed": lambda x: x.view(2, 3).t(),
    "every second": lambda x: torch.stack([x, x], dim=1)[:, 0],
    "expanded": lambda x: x[:1].expand(6),
    "negated": torch._neg_view,
    "requires grad": lambda x: (x * torch.ones(6, requires_grad=True)).detach_().requires_grad_(),
}


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("kind", NOT_PLAIN)
def test_what_its_memory_does_not_tell_keeps_away_from_the_fused_step(kind, accumulate, steps):
    """Small tensors, one of them no plain contiguous numbers of the bucket's dtype."""
    odd = NOT_PLAIN[kind](torch.arange(1.0, 7.0))
    like = torch.zeros(6) if odd is None else torch.zeros_like(odd, memory_format=torch.preserve_format)
    tensors = [torch.ones(5), odd, torch.ones(4)]
    layout = SlotLayout.of([5, 6, 4], torch.float32)
    bucket_n = torch.full((layout.total,), 10.0)
    views = layout.views(bucket_n, [tensors[0], like, tensors[2]])
    kernels.scale_accumulate_(bucket_n, layout, tensors, 2.0, accumulate=accumulate, views=views)
    base = 10.0 if accumulate else 0.0
    expected = {
        "none": [base] * 6,
        "complex": [[base + 2, base], [base + 4, base], [base + 6, base]],
        "transposed": [[base + 2, base + 8], [base + 4, base + 10], [base + 6, base + 12]],
        "expanded": [base + 2] * 6,
        "negated": [base - 2 * k for k in range(1, 7)],
    }.get(kind, [base + 2 * k for k in range(1, 7)])
    assert [view.tolist() for view in views] == [[base + 2] * 5, expected, [base + 2] * 4]
    assert (steps, bucket_n.requires_grad) == ([], False)


def test_slots_in_another_order_than_their_tensors_keep_away_from_the_fused_step(steps):
    layout = SlotLayout.of([4], torch.float32)
    bucket_n = torch.zeros(4)
    views = layout.views(bucket_n, [torch.zeros(2, 2).t()])
    given = [torch.tensor([[1.0, 2.0], [3.0, 4.0]])]
    kernels.scale_accumulate_(bucket_n, layout, given, 1.0, accumulate=True, views=views)
    assert (bucket_n.tolist(), steps) == ([1, 3, 2, 4], [])


@pytest.mark.parametrize("with_views", [False, True])
@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([torch.zeros(1), None], r"slot of 4 .*\(1,\)"),
        ([torch.zeros(5), None], r"slot of 4 .*\(5,\)"),
        ([torch.zeros(4), torch.zeros(3)], r"slot of 2 .*\(3,\)"),
        ([torch.zeros(4)], "2 tensors.*not 1"),
        ([torch.zeros(4), None, None], "2 tensors.*not 3"),
        ([torch.zeros(4, dtype=torch.int32), None], "int32"),
        ([torch.zeros(4), torch.zeros(2, dtype=torch.bool)], "bool"),
        ([torch.zeros(4, device="meta"), None], "meta"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_before_anything_is_written(tensors, words, with_views):
    layout = SlotLayout.of([4, 2], torch.float32)
    bucket_n = torch.ones(layout.total)
    views = layout.views(bucket_n) if with_views else None
    for accumulate in (False, True):
        with pytest.raises(ConfigError, match=words):
            kernels.scale_accumulate_(bucket_n, layout, tensors, 2.0, accumulate=accumulate, views=views)
    with pytest.raises(ConfigError, match=words):
        kernels.unpack_(tensors, bucket_n, layout, 2.0, views=views)
    assert bucket_n.tolist() == [1.0] * 8


@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf, 3.5e38])
def test_a_weight_beyond_float32_is_refused(weight):
    layout = SlotLayout.of([1], torch.float32)
    bucket_n = torch.ones(4)
    with pytest.raises(ConfigError, match=re.escape(f"weight: {weight} is not within")):
        kernels.scale_accumulate_(bucket_n, layout, [torch.ones(1)], weight, accumulate=True)
    assert bucket_n.tolist() == [1.0] * 4


def test_mixed_dtypes_in_one_bucket():
    tensors = [torch.tensor([1.5], dtype=dtype) for dtype in DTYPES]
    layout = SlotLayout.of([1, 1, 1, 1, 2], torch.float32)
    bucket_n = torch.zeros(layout.total)
    for accumulate in (False, True):
        kernels.scale_accumulate_(bucket_n, layout, tensors, 2.0, accumulate=accumulate)
    assert [view.tolist() for view in layout.views(bucket_n)] == [[6], [6], [6], [6], [6, 0]]
    kernels.unpack_(tensors, bucket_n, layout, 0.5)
    assert [tensor.tolist() for tensor in tensors] == [[3], [3], [3], [3], [3 + 0j]]


def test_gradients_that_require_grad_are_plain_numbers_here():
    tensor = torch.tensor([1.0, 2.0], requires_grad=True)
    layout = SlotLayout.of([2], torch.float32)
    bucket_n = torch.zeros(4)
    kernels.scale_accumulate_(bucket_n, layout, [tensor * 1.0], 2.0, accumulate=True)
    kernels.unpack_([tensor], bucket_n, layout, 2.0)
    assert (bucket_n.requires_grad, tensor.tolist()) == (False, [4.0, 8.0])


def test_a_sum_that_overflows_is_no_inf():
    """Large tensors are first checked by their sums."""
    flag = torch.zeros(1)
    huge = torch.full((LARGE * 2,), 3e38)
    kernels.flag_nonfinite_(flag, [huge])
    assert flag.tolist() == [0]
    huge[-1] = torch.inf
    kernels.flag_nonfinite_(flag, [huge])
    assert flag.tolist() == [1]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_check_for_nan_changes_no_bit_of_a_finite_number(dtype):
    real = {torch.int32: torch.float32, torch.int64: torch.float64}[dtype]
    info = torch.iinfo(dtype)
    bits = torch.randint(
        info.min, info.max, (10_000,), dtype=dtype, generator=torch.Generator().manual_seed(3)
    )
    finite = bits[bits.view(real).isfinite()]
    before = finite.clone()
    kernels.flag_nonfinite_(torch.zeros(1), [finite.view(real)])
    assert len(finite) > 9_000
    assert torch.equal(finite, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_a_bucket_that_others_read_is_kept(sizes, dtype):
    tensors, layout, mine_n, judge_n = case(sizes, dtype, torch.float32, whole=False)
    for bucket_n in (mine_n, judge_n):
        bucket_n.copy_(torch.linspace(-3.0, 3.0, layout.total))
    before_n = mine_n.clone()
    mine, judge = tensors, [tensor.clone() for tensor in tensors]
    kernels.unpack_(mine, mine_n, layout, 1 / 3, keep=True)
    reference.unpack_(judge, judge_n, layout, 1 / 3)
    assert torch.equal(mine_n, before_n)
    for tensor, expected in zip(mine, judge, strict=True):
        assert torch.equal(tensor, expected)


def test_a_kept_bucket_without_tensors_is_kept():
    layout = SlotLayout.of([3], torch.float32)
    bucket_n = torch.ones(layout.total)
    kernels.unpack_([None], bucket_n, layout, 0.5, keep=True)
    assert set(bucket_n.tolist()) == {1.0}
