"""The Triton kernels against the reference: on a GPU, or in Triton's interpreter (test_interpreter.py)."""

from __future__ import annotations

import os

import pytest
import torch

from elche.errors import ConfigError
from elche.kernels import SlotLayout, nonfinite, reference, scale_accumulate, tables, unpack

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    NO_GPU = "no CUDA device; test_interpreter.py runs these in Triton's interpreter"
    pytest.skip(NO_GPU, allow_module_level=True)

DEVICE = torch.device("cpu") if INTERPRETED else torch.device("cuda", 0)
MIXED = [0, 1, 3, 7, 16, 17, 1023, 1024, 1025, 5001, tables.CHUNK, 2 * tables.CHUNK + 1]
SIZES = {
    "one": [5001],
    "seven": [0, 1, 3, 7, 16, 17, 1023],
    "mixed": MIXED,
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64]
BUCKETS = [torch.float32, torch.float64]
SENTINEL = 9.0


def real_numel(tensor):
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def random_tensors(sizes, dtype):
    draw = torch.Generator().manual_seed(11)
    return [torch.randn(n, generator=draw).to(dtype).to(DEVICE) for n in sizes]


def layout_of(tensors, bucket_dtype):
    return SlotLayout.of([real_numel(tensor) for tensor in tensors], bucket_dtype)


def buckets(layout):
    """Two equal buckets with a sentinel in every place, padding too."""
    return [torch.full((layout.total,), SENTINEL, dtype=layout.dtype, device=DEVICE) for _ in range(2)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("sizes", "bucket_dtype"), [*((k, torch.float32) for k in SIZES), ("mixed", torch.float64)]
)
def test_overwrite_then_accumulate_has_the_reference_s_bits(sizes, dtype, bucket_dtype):
    tensors = random_tensors(SIZES[sizes], dtype)
    layout = layout_of(tensors, bucket_dtype)
    mine_n, judge_n = buckets(layout)
    weight = torch.tensor(0.7, dtype=torch.float64, device=DEVICE)
    for accumulate, factor in ((False, 0.3), (True, weight), (True, 0.0)):
        scale_accumulate.launch(mine_n, layout, tensors, factor, accumulate=accumulate, nonfinite=None)
        reference.scale_accumulate_(judge_n, layout, tensors, factor, accumulate=accumulate)
        assert torch.equal(mine_n, judge_n)  # the padding's sentinels too


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_missing_tensors(dtype, accumulate):
    tensors = [tensor if k % 3 else None for k, tensor in enumerate(random_tensors(MIXED, dtype))]
    layout = layout_of(random_tensors(MIXED, dtype), torch.float32)
    mine_n, judge_n = buckets(layout)
    scale_accumulate.launch(mine_n, layout, tensors, 2.0, accumulate=accumulate, nonfinite=None)
    reference.scale_accumulate_(judge_n, layout, tensors, 2.0, accumulate=accumulate)
    assert torch.equal(mine_n, judge_n)


# The interpreter's numpy multiplies before it selects, and warns of 0 * inf.
@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply:RuntimeWarning")
@pytest.mark.parametrize(("weight", "flag"), [(0.0, None), (0.0, 0.0), (3.0, 1.0)])
def test_weight_0_and_the_flag_never_let_inf_in(weight, flag):
    layout = SlotLayout.of([3, tables.CHUNK], torch.float32)
    bad = [torch.full((n,), torch.inf, device=DEVICE) for n in layout.numels]
    bucket_n = torch.ones(layout.total, device=DEVICE)
    flagged = None if flag is None else torch.tensor([flag], device=DEVICE)
    scale_accumulate.launch(bucket_n, layout, bad, weight, accumulate=True, nonfinite=flagged)
    assert bucket_n.tolist() == [1.0] * layout.total
    scale_accumulate.launch(bucket_n, layout, bad, weight, accumulate=False, nonfinite=flagged)
    assert bucket_n.tolist() == [0.0, 0.0, 0.0, 1.0] + [0.0] * tables.CHUNK


def test_half_precision_is_scaled_in_float32():
    layout = SlotLayout.of([2], torch.float32)
    bucket_n = torch.zeros(4, device=DEVICE)
    half = [torch.tensor([30000.0, 2.0**-24], dtype=torch.float16, device=DEVICE)]
    for accumulate in (False, True):
        scale_accumulate.launch(bucket_n, layout, half, 64.0, accumulate=accumulate, nonfinite=None)
    assert bucket_n.tolist() == [3840000.0, 2.0**-17, 0, 0]


@pytest.mark.parametrize("bucket_dtype", BUCKETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_unpack(dtype, bucket_dtype):
    layout = layout_of(random_tensors(MIXED, dtype), bucket_dtype)
    draw = torch.Generator().manual_seed(5)
    bucket_n = torch.randn(layout.total, generator=draw).to(DEVICE, bucket_dtype)
    mine, judge = ([torch.empty_like(tensor) for tensor in random_tensors(MIXED, dtype)] for _ in range(2))
    unpack.launch([*mine[:-1], None], bucket_n, layout, 0.3)
    reference.unpack_([*judge[:-1], None], bucket_n, layout, 0.3)
    # The interpreter rounds to bfloat16 its own way: up to one step of 2^-7 off.
    step = 2.0**-7 if INTERPRETED and dtype == torch.bfloat16 else 0.0
    for a, b in zip(mine[:-1], judge[:-1], strict=True):
        torch.testing.assert_close(a, b, rtol=step, atol=0.0)


@pytest.mark.parametrize("dtype", DTYPES[:4])
def test_unaligned_tensors_and_what_lies_beside_them(dtype):
    """Tensors one element past a 16-byte boundary, with a neighbour on either side."""
    sizes = [n for n in MIXED if n]
    layout = SlotLayout.of(sizes, torch.float32)
    hosts = [torch.full((n + 2,), SENTINEL, dtype=dtype, device=DEVICE) for n in sizes]
    inner = [host[1:-1] for host in hosts]
    bucket_n = torch.arange(layout.total, dtype=torch.float32, device=DEVICE) % 64
    unpack.launch(inner, bucket_n, layout, 2.0)
    for host, view in zip(hosts, layout.views(bucket_n), strict=True):
        assert host.tolist() == [SENTINEL, *(view * 2).tolist(), SENTINEL]
    scale_accumulate.launch(bucket_n, layout, inner, 0.5, accumulate=True, nonfinite=None)
    expected_n = torch.arange(layout.total) % 64.0
    for view in layout.views(expected_n):
        view *= 2
    assert bucket_n.tolist() == expected_n.tolist()


@pytest.mark.skipif(not INTERPRETED, reason="a GPU checks its addresses itself")
def test_what_kernels_promise_of_addresses_is_checked_here(promised):
    layout = SlotLayout.of([tables.CHUNK + 1], torch.float32)
    scale_accumulate.launch(
        torch.zeros(layout.total),
        layout,
        [torch.zeros(tables.CHUNK + 1)],
        1.0,
        accumulate=True,
        nonfinite=None,
    )
    assert len(promised) == 3  # of the whole chunk: the tensor's, and the bucket's when read and when written


def test_one_launch_for_tensors_of_every_dtype():
    tensors = [torch.tensor([1.5], dtype=dtype, device=DEVICE) for dtype in DTYPES]
    layout = layout_of(tensors, torch.float32)
    bucket_n = torch.zeros(layout.total, device=DEVICE)
    for accumulate in (False, True):
        scale_accumulate.launch(bucket_n, layout, tensors, 2.0, accumulate=accumulate, nonfinite=None)
    assert [view.tolist() for view in layout.views(bucket_n)] == [[6], [6], [6], [6], [6, 0]]


def test_memory_order():
    matrix = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=DEVICE).t()
    image = torch.arange(8.0, device=DEVICE).reshape(1, 2, 2, 2).to(memory_format=torch.channels_last)
    layout = SlotLayout.of([4, 8], torch.float32)
    bucket_n = torch.zeros(layout.total, device=DEVICE)
    scale_accumulate.launch(bucket_n, layout, [matrix, image], 1.0, accumulate=False, nonfinite=None)
    assert bucket_n.tolist() == [1, 2, 3, 4, 0, 4, 1, 5, 2, 6, 3, 7]


@pytest.mark.parametrize("with_layout", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_flag_nonfinite(dtype, with_layout):
    given = [torch.full((n,), torch.finfo(dtype).max, dtype=dtype, device=DEVICE) for n in MIXED]
    layout = layout_of(given, torch.float32) if with_layout else None
    flag = torch.zeros(1, device=DEVICE)
    nonfinite.launch(flag, [None, *given[1:]], layout)
    assert flag.tolist() == [0]
    for tensor, at, bad in (
        (given[1], 0, torch.nan),
        (given[9], 5000, torch.inf),
        (given[11], 9, -torch.inf),
    ):
        flag.zero_()
        tensor[at] = bad
        nonfinite.launch(flag, given, layout)
        assert flag.tolist() == [1]
        tensor[at] = 1.0
    nonfinite.launch(flag, given, layout)
    assert flag.tolist() == [1]


def test_nothing_to_do_launches_nothing():
    layout = SlotLayout.of([], torch.float32)
    scale_accumulate.launch(torch.zeros(0, device=DEVICE), layout, [], 1.0, accumulate=False, nonfinite=None)
    unpack.launch([], torch.zeros(0, device=DEVICE), layout, 1.0)
    nonfinite.launch(torch.zeros(1, device=DEVICE), [], None)
    assert len(layout.tables) == 1


def test_gradients_that_moved_are_found():
    layout = SlotLayout.of([2, 2], torch.float32)
    bucket_n = torch.zeros(layout.total, device=DEVICE)
    kept = torch.tensor([1.0, 2.0], device=DEVICE)
    uploads = []
    for moved in (torch.tensor([3.0, 4.0], device=DEVICE), torch.tensor([5.0, 6.0], device=DEVICE)):
        for _ in range(2):
            scale_accumulate.launch(bucket_n, layout, [kept, moved], 1.0, accumulate=True, nonfinite=None)
            uploads += [table.sources for table in layout.tables.values()]
    assert bucket_n.tolist() == [4, 8, 0, 0, 16, 20, 0, 0]
    assert [table is uploads[0] for table in uploads] == [True, True, False, False]
    assert uploads[2] is uploads[3]


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.zeros(3), r"slot of 4 .*\(3,\)"),
        (torch.zeros(4, device="meta"), "meta"),
        (torch.zeros(4, dtype=torch.int32), "int32"),
        (torch.zeros(4, 2)[:, 0], "dense"),
        (torch.zeros(2, dtype=torch.complex64).conj(), "lazily"),
    ],
)
def test_an_address_is_followed_only_where_it_leads_to_the_slot_s_elements(tensor, words):
    tensor = tensor if tensor.is_meta else tensor.to(DEVICE)
    layout = SlotLayout.of([4], torch.float32)
    with pytest.raises(ConfigError, match=words):
        unpack.launch([tensor], torch.zeros(4, device=DEVICE), layout, 1.0)
