"""What each operation returns: every function holds on every rank, at any world size, on every backend."""

from __future__ import annotations

import time

import torch

import elche as hvd

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
SHAPES = ((), (0,), (1,), (17,), (3, 0, 2), (5, 7, 3))


def ramp(shape, dtype, factor=1):
    """0, 1, 2, 3, 4, 0, 1, ... times a factor: small enough for every dtype."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 5 * factor).reshape(shape).to(dtype)


def equal(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def allreduce_sums_every_dtype_and_shape(rank, size):
    rank_sum = {1: 1, 2: 3, 3: 6, 4: 10}[size]
    for dtype in (*FLOATS, *INTEGERS):
        for shape in SHAPES:
            tensor = ramp(shape, dtype, rank + 1)
            equal(hvd.allreduce(tensor, op=hvd.Sum), ramp(shape, dtype, rank_sum))
            equal(tensor, ramp(shape, dtype, rank + 1))


def allreduce_averages(rank, size):
    for dtype in FLOATS:
        mean = {1: 1.0, 2: 1.5, 3: 2.0, 4: 2.5}[size]
        equal(hvd.allreduce(ramp((17,), dtype, rank + 1)), ramp((17,), dtype, mean))
    for dtype in INTEGERS:  # rounded down
        found = hvd.allreduce(torch.tensor([rank + 1, 7], dtype=dtype))
        assert found.tolist() == [{1: 1, 2: 1, 3: 2, 4: 2}[size], 7]
    assert hvd.allreduce(torch.tensor([-1 - rank])).tolist() == [{1: -1, 2: -2, 3: -2, 4: -3}[size]]
    equal(hvd.allreduce(torch.ones(3), average=False), torch.full((3,), float(size)))
    equal(hvd.allreduce(torch.full((3,), 4.0), average=True), torch.full((3,), 4.0))


def allreduce_finds_extremes_and_products(rank, size):
    for dtype in (*FLOATS, torch.int8, torch.int64):
        tensor = torch.tensor([rank, -rank, 3, 2 * (rank == 1)], dtype=dtype)
        equal(
            hvd.allreduce(tensor, op=hvd.Min),
            torch.tensor([0, 1 - size, 3, 0], dtype=dtype) if size != 1 else tensor,
        )
        equal(hvd.allreduce(tensor, op=hvd.Max), torch.tensor([size - 1, 0, 3, 2 * (size > 1)], dtype=dtype))
        product = {1: 1, 2: 2, 3: 6, 4: 24}[size]
        equal(
            hvd.allreduce(torch.tensor([rank + 1, 1], dtype=dtype), op=hvd.Product),
            torch.tensor([product, 1], dtype=dtype),
        )


def allreduce_takes_bools(rank, size):
    mine = torch.tensor([True, rank == 0, False])
    assert hvd.allreduce(mine, op=hvd.Sum).tolist() == [True, True, False]
    assert hvd.allreduce(mine, op=hvd.Max).tolist() == [True, True, False]
    assert hvd.allreduce(mine, op=hvd.Min).tolist() == [True, size == 1, False]
    assert hvd.allreduce(mine, op=hvd.Product).tolist() == [True, size == 1, False]


def sums_of_halves_are_made_in_float32(rank, size):
    big = hvd.allreduce(torch.tensor([3e4, 1e-7], dtype=torch.float16))
    equal(big, torch.tensor([3e4, 1e-7], dtype=torch.float16))
    small = torch.tensor([256.0 if rank == 0 else 0.75], dtype=torch.bfloat16)
    exact = {1: 256.0, 2: 256.75, 3: 257.5, 4: 258.25}[size]
    equal(hvd.allreduce(small, op=hvd.Sum), torch.tensor([exact]).bfloat16())


def allreduce_in_place_keeps_strides(rank, size):
    for tensor in (ramp((17,), torch.float32), ramp((6, 4), torch.float32).t(), ramp((9,), torch.int64)[::2]):
        expected, strides = tensor.clone() * size, tensor.stride()
        found = hvd.allreduce_(tensor, op=hvd.Sum)
        assert found is tensor
        assert tensor.stride() == strides
        equal(tensor, expected)
    parameter = torch.nn.Parameter(torch.full((3,), rank + 1.0))
    hvd.allreduce_(parameter, op=hvd.Max)
    assert parameter.tolist() == [float(size)] * 3


def non_contiguous_tensors_are_taken(rank, size):
    tensor = (torch.arange(12.0).reshape(3, 4) * (rank + 1)).t()
    factor = {1: 1, 2: 3, 3: 6, 4: 10}[size]
    equal(hvd.allreduce(tensor, op=hvd.Sum), torch.arange(12.0).reshape(3, 4).t() * factor)
    equal(hvd.allgather(tensor)[:4], torch.arange(12.0).reshape(3, 4).t())
    equal(hvd.broadcast(tensor, size - 1), torch.arange(12.0).reshape(3, 4).t() * size)


def factors_are_applied_before_and_after(rank, size):
    for dtype in FLOATS:
        tensor = torch.full((5,), 4.0, dtype=dtype)
        found = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
        equal(found, torch.full((5,), 6.0 * size, dtype=dtype))
        equal(hvd.allreduce(tensor, prescale_factor=0.25), torch.ones(5, dtype=dtype))
        equal(hvd.allreduce(tensor, op=hvd.Max, postscale_factor=2.0), torch.full((5,), 8.0, dtype=dtype))
    found = hvd.allreduce(torch.tensor([3, 4]), op=hvd.Sum, prescale_factor=0.5)
    assert found.tolist() == [size, 2 * size]  # 1.5 is cut to 1
    half = torch.tensor([6e4], dtype=torch.float16)  # would be infinite if it were scaled as float16
    equal(hvd.allreduce(half, prescale_factor=4.0, postscale_factor=0.25), half)


def adasum_adds_what_is_orthogonal_and_averages_what_is_equal(rank, size):
    same = torch.tensor([2.0, -4.0, 6.0])
    equal(hvd.allreduce(same, op=hvd.Adasum), same)
    other = torch.zeros(4)
    other[rank] = rank + 1.0
    equal(hvd.allreduce(other, op=hvd.Adasum), torch.tensor([float(i + 1) * (i < size) for i in range(4)]))
    if size == 2:  # a = (1, 0), b = (1, 1): (1 - 1/2) a + (1 - 1/4) b
        mine = torch.tensor([1.0, float(rank)])
        equal(hvd.allreduce(mine, op=hvd.Adasum), torch.tensor([1.25, 0.75]))


def async_operations_proceed_and_are_polled(rank, size):
    tensors = [torch.full((n,), float(rank)) for n in (1, 17, 1000, 0, 3)]
    handles = [hvd.allreduce_async(tensor, op=hvd.Sum) for tensor in tensors]
    until = time.monotonic() + 20
    while not all(hvd.poll(handle) for handle in handles):
        assert time.monotonic() < until
    for tensor, handle in zip(tensors, handles, strict=True):
        equal(hvd.synchronize(handle), torch.full_like(tensor, size * (size - 1) / 2))
        equal(tensor, torch.full_like(tensor, rank))
    tensor = torch.full((5,), float(rank))
    handle = hvd.allreduce_async_(tensor, op=hvd.Max)
    assert hvd.synchronize(handle) is tensor
    assert tensor.tolist() == [size - 1.0] * 5


def a_thousand_small_tensors_are_fused(rank, size):
    tensors = [torch.full((n % 7,), float(n + rank)) for n in range(1000)]
    handles = [hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"t{n}") for n, tensor in enumerate(tensors)]
    for n, handle in enumerate(handles):
        equal(hvd.synchronize(handle), torch.full((n % 7,), size * n + size * (size - 1) / 2))


def names_may_come_in_any_order(rank, size):
    order = list(range(20))
    order = order[7 * rank % 20 :] + order[: 7 * rank % 20]
    order = order[::-1] if rank % 2 else order
    reduced = {n: hvd.allreduce_async(torch.tensor([n + 0.5]), name=f"reduced {n}") for n in order}
    gathered = {n: hvd.allgather_async(torch.tensor([[n, rank]]), name=f"gathered {n}") for n in order}
    for n in order:
        assert hvd.synchronize(gathered[n]).tolist() == [[n, other] for other in range(size)]
        assert hvd.synchronize(reduced[n]).tolist() == [n + 0.5]


def grouped_operations_go_together(rank, size):
    tensors = [ramp((5,), torch.float32, rank + 1), ramp((2, 3), torch.int64, rank + 1), torch.tensor(1.0)]
    factor = {1: 1, 2: 3, 3: 6, 4: 10}[size]
    sums = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    equal(sums[0], ramp((5,), torch.float32, factor))
    equal(sums[1], ramp((2, 3), torch.int64, factor))
    equal(sums[2], torch.tensor(float(size)))
    handle = hvd.grouped_allreduce_async_(tensors, op=hvd.Sum, name="in place")
    assert hvd.synchronize(handle) == tensors
    equal(tensors[1], ramp((2, 3), torch.int64, factor))
    rows, more = hvd.grouped_allgather([torch.full((rank, 2), 1.0), torch.tensor([rank])])
    assert rows.shape == (size * (size - 1) // 2, 2)
    assert more.tolist() == list(range(size))
    assert hvd.grouped_allreduce([]) == []


def allgather_takes_rows_of_any_number(rank, size):
    for dtype in (*FLOATS, *INTEGERS, torch.bool):
        rows = [3, 0, 1, 5][rank]
        found = hvd.allgather(torch.full((rows, 2), rank % 2).to(dtype))
        expected = [torch.full(([3, 0, 1, 5][r], 2), r % 2).to(dtype) for r in range(size)]
        equal(found, torch.cat(expected))
    large = hvd.allgather(torch.full((20_000 * (rank + 1), 2), rank, dtype=torch.int64))
    assert torch.bincount(large[:, 0]).tolist() == [20_000 * (r + 1) for r in range(size)]
    assert hvd.allgather(torch.empty(0, 3)).shape == (0, 3)
    handles = [hvd.allgather_async(torch.full((n * rank,), n)) for n in range(5)]
    for n, handle in enumerate(handles):
        assert hvd.synchronize(handle).tolist() == [n] * (n * size * (size - 1) // 2)


def broadcast_comes_from_any_root(rank, size):
    for root in range(size):
        for dtype in (*FLOATS, *INTEGERS, torch.bool):
            mine = torch.full((3, 5), rank).to(dtype)
            equal(hvd.broadcast(mine, root), torch.full((3, 5), root).to(dtype))
            equal(mine, torch.full((3, 5), rank).to(dtype))
        tensors = [torch.full((n,), float(rank)) for n in (0, 1, 17)]
        handles = [hvd.broadcast_async_(tensor, root) for tensor in tensors]
        for tensor, handle in zip(tensors, handles, strict=True):
            assert hvd.synchronize(handle) is tensor
            assert set(tensor.tolist()) <= {float(root)}
    mine = torch.tensor([1.0])
    given = hvd.broadcast(mine, 0)
    given += 1
    assert mine.tolist() == [1.0]


def alltoall_sends_rows(rank, size):
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        equal(
            hvd.alltoall(torch.full((2 * size, 3), rank % 2).to(dtype)),
            torch.cat([torch.full((2, 3), r % 2).to(dtype) for r in range(size)]),
        )
    splits = torch.tensor([(rank + to) % 3 for to in range(size)])
    rows = torch.cat([torch.full((int(n), 2), 10 * rank + to) for to, n in enumerate(splits)])
    found, received = hvd.alltoall(rows, splits)
    assert received.tolist() == [(r + rank) % 3 for r in range(size)]
    assert received.dtype == torch.int32
    assert found[:, 1].tolist() == [10 * r + rank for r in range(size) for _ in range((r + rank) % 3)]
    everything = [0] * size
    everything[0] = 300_001  # more than one step
    found, received = hvd.alltoall(torch.full((300_001,), rank), everything)
    assert received.tolist() == ([300_001] * size if rank == 0 else [0] * size)
    assert torch.bincount(found).tolist() == ([300_001] * size if rank == 0 else [])


def reducescatter_gives_each_rank_its_rows(rank, size):
    for rows in (1, 4, 7):
        tensor = torch.arange(rows * 3.0).reshape(rows, 3) * (rank + 1)
        factor = {1: 1, 2: 3, 3: 6, 4: 10}[size]
        counts = {
            1: {1: [1], 4: [4], 7: [7]},
            2: {1: [1, 0], 4: [2, 2], 7: [4, 3]},
            3: {1: [1, 0, 0], 4: [2, 1, 1], 7: [3, 2, 2]},
            4: {1: [1, 0, 0, 0], 4: [1, 1, 1, 1], 7: [2, 2, 2, 1]},
        }[size][rows]
        start = sum(counts[:rank])
        expected = torch.arange(rows * 3.0).reshape(rows, 3)[start : start + counts[rank]] * factor
        equal(hvd.reducescatter(tensor, op=hvd.Sum), expected)
        equal(
            hvd.reducescatter(tensor.to(torch.bfloat16), op=hvd.Max),
            (torch.arange(rows * 3.0).reshape(rows, 3)[start : start + counts[rank]] * size).bfloat16(),
        )
    one, two = hvd.grouped_reducescatter([torch.ones(size), torch.arange(2 * size)], op=hvd.Sum)
    assert one.tolist() == [float(size)]
    assert two.tolist() == [2 * rank * size, (2 * rank + 1) * size]
    equal(hvd.reducescatter(torch.full((size, 2), 3.0)), torch.full((1, 2), 3.0))


def compressed_tensors_come_back_in_their_own_dtype(rank, size):
    tensor = torch.full((5,), 1.5 * (rank + 1))
    for wire in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        found = hvd.allreduce(tensor, compression=wire, op=hvd.Sum)
        equal(found, torch.full((5,), 1.5 * {1: 1, 2: 3, 3: 6, 4: 10}[size]))


def sparse_tensors_are_summed(rank, size):
    places = torch.tensor([[0, rank + 1], [2, 0]])
    values = torch.tensor([1.0, 10.0 * (rank + 1)])
    mine = torch.sparse_coo_tensor(places, values, (6, 3), check_invariants=True)
    dense = torch.zeros(6, 3)
    dense[0, 2] = size
    for r in range(size):
        dense[r + 1, 0] = 10.0 * (r + 1)
    handle = hvd.sparse_allreduce_async(mine, name="sparse", op=hvd.Sum)
    equal(hvd.synchronize(handle).to_dense(), dense)
    equal(hvd.sparse_allreduce_async(mine, name=None, op=hvd.Average)().to_dense(), dense / size)
    empty = torch.zeros(9, 4).to_sparse(1)
    assert hvd.sparse_allreduce_async(empty, "empty", hvd.Sum)().shape == (9, 4)


def a_barrier_waits_for_all(rank, size):
    for last in range(size):
        hvd.barrier()
        if rank == last:
            time.sleep(0.02)  # the others have time to return too early
        spoke = time.monotonic()
        hvd.barrier()
        moments = hvd.allgather(torch.tensor([[spoke, time.monotonic()]], dtype=torch.float64))
        assert moments[:, 1].min() >= moments[:, 0].max()


LAWS = [
    allreduce_sums_every_dtype_and_shape,
    allreduce_averages,
    allreduce_finds_extremes_and_products,
    allreduce_takes_bools,
    sums_of_halves_are_made_in_float32,
    allreduce_in_place_keeps_strides,
    non_contiguous_tensors_are_taken,
    factors_are_applied_before_and_after,
    adasum_adds_what_is_orthogonal_and_averages_what_is_equal,
    async_operations_proceed_and_are_polled,
    a_thousand_small_tensors_are_fused,
    names_may_come_in_any_order,
    grouped_operations_go_together,
    allgather_takes_rows_of_any_number,
    broadcast_comes_from_any_root,
    alltoall_sends_rows,
    reducescatter_gives_each_rank_its_rows,
    compressed_tensors_come_back_in_their_own_dtype,
    sparse_tensors_are_summed,
    a_barrier_waits_for_all,
]
