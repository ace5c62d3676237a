"""The CPU path against the reference, bit for bit where nothing forbids it."""

from __future__ import annotations

import pytest
import torch

from elche import kernels
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
