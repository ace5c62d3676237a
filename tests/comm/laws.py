"""The laws of `Comm`: each function holds on every rank of every backend, at any world size.

`meet()` goes round the communicator: it returns once every rank has called it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import numpy as np
import pytest

from elche.comm.base import Comm, all_gather_bytes, broadcast_bytes
from elche.errors import CommError, ConfigError, DeadlineError

SIZES = (0, 1, 3, 17, 1023, 1024, 5001)
Meet = Callable[[], object]


def same_on_all_ranks(comm: Comm, *arrays: np.ndarray) -> bool:
    return len(set(all_gather_bytes(comm, b"".join(array.tobytes() for array in arrays)))) == 1


def all_gather_stacks_in_rank_order(comm: Comm, meet: Meet) -> None:
    for n in SIZES:
        rows = comm.all_gather(np.arange(n, dtype=np.float64) + 1000.5 * comm.rank)
        assert rows.shape == (comm.size, n)
        assert rows.dtype == np.float64
        for rank in range(comm.size):
            assert rows[rank].tolist() == [i + 1000.5 * rank for i in range(n)]


def all_gather_keeps_shape_and_dtype(comm: Comm, meet: Meet) -> None:
    for dtype in ("uint8", "bool", "int16", "int64", "float16", "float32", "complex64"):
        rows = comm.all_gather(np.full((3, 17), comm.rank % 2, dtype))
        assert (rows.shape, rows.dtype) == ((comm.size, 3, 17), np.dtype(dtype))
        assert [set(row.ravel().tolist()) for row in rows] == [{rank % 2} for rank in range(comm.size)]
    assert comm.all_gather(np.empty((3, 0), np.uint8)).shape == (comm.size, 3, 0)
    assert comm.all_gather(np.array(comm.rank)).tolist() == list(range(comm.size))


def all_gather_result_is_ones_own(comm: Comm, meet: Meet) -> None:
    send = np.array([1.0])
    rows = comm.all_gather(send)
    rows += comm.rank
    send += 7
    assert comm.agree(True)
    assert rows.tolist() == [[1.0 + comm.rank]] * comm.size


def all_gather_bytes_takes_uneven_and_empty(comm: Comm, meet: Meet) -> None:
    lengths = [0, 5001, 1, 17]
    payloads = all_gather_bytes(comm, bytes([comm.rank]) * lengths[comm.rank])
    assert payloads == [bytes([rank]) * lengths[rank] for rank in range(comm.size)]
    assert all_gather_bytes(comm, b"") == [b""] * comm.size


def broadcast_bytes_takes_any_length_from_any_root(comm: Comm, meet: Meet) -> None:
    for root in range(comm.size):
        for length in (0, 1, 5001):
            mine = bytes([7 + root]) * length if comm.rank == root else b"not this"
            assert broadcast_bytes(comm, mine, root=root) == bytes([7 + root]) * length


def all_to_all_brings_each_rank_its_row_of_every_rank(comm: Comm, meet: Meet) -> None:
    for dtype in (np.float32, np.int64, np.uint8):
        for n in SIZES:
            send = np.array([[10 * comm.rank + to] * n for to in range(comm.size)], dtype).reshape(
                comm.size, n
            )
            rows = comm.all_to_all(send)
            assert (rows.dtype, rows.shape) == (dtype, (comm.size, n))
            assert rows.tolist() == [[10 * origin + comm.rank] * n for origin in range(comm.size)]
            assert send.tolist() == [[10 * comm.rank + to] * n for to in range(comm.size)]


def all_reduce_sums_exactly_out_of_place(comm: Comm, meet: Meet) -> None:
    rank_sum = {1: 1, 2: 3, 3: 6, 4: 10}[comm.size]
    for dtype in (np.float32, np.float64, np.int64, np.int32, np.uint8):
        for n in SIZES:
            send, recv = (np.arange(n) % 5 * (comm.rank + 1)).astype(dtype), np.full(n, 99, dtype)
            comm.all_reduce([send], [recv])
            assert recv.tolist() == [i % 5 * rank_sum for i in range(n)]
            assert send.tolist() == [i % 5 * (comm.rank + 1) for i in range(n)]


def all_reduce_takes_many_pairs_of_mixed_dtypes(comm: Comm, meet: Meet) -> None:
    rank_sum = {1: 1, 2: 3, 3: 6, 4: 10}[comm.size]
    kinds = [
        (np.float32, (5001,)),
        (np.float64, (3, 17)),
        (np.int64, ()),
        (np.float32, (0,)),
        (np.complex64, (2,)),
    ]
    sends = [np.full(shape, comm.rank + 1, dtype) for dtype, shape in kinds]
    recvs = [np.empty_like(send) for send in sends]
    comm.all_reduce(sends, recvs)
    for send, recv, (dtype, shape) in zip(sends, recvs, kinds, strict=True):
        assert np.array_equal(recv, np.full(shape, rank_sum, dtype))
        assert np.array_equal(send, np.full(shape, comm.rank + 1, dtype))
    comm.all_reduce([], [])


def all_reduce_gives_the_same_bits(comm: Comm, meet: Meet) -> None:
    rng = np.random.default_rng(comm.rank)
    sends = [
        rng.standard_normal(n).astype(np.float32) * 10.0 ** rng.integers(-6, 6, n) for n in (*SIZES, 100_003)
    ]
    sends = [send.astype(np.float32) for send in sends] + sends
    first, again = ([np.empty_like(send) for send in sends] for _ in range(2))
    comm.all_reduce(sends, first)
    comm.all_reduce(sends, again)
    assert same_on_all_ranks(comm, *first)
    assert [recv.tobytes() for recv in first] == [recv.tobytes() for recv in again]


def broadcast_overwrites_with_the_roots(comm: Comm, meet: Meet) -> None:
    for root in range(comm.size):
        for n in SIZES:
            buffers = [
                np.full(n, comm.rank + 0.5, np.float32),
                np.full((n, 2), comm.rank, np.uint8),
                np.full(n, comm.rank == root),
                np.array(comm.rank),
            ]
            comm.broadcast(buffers, root=root)
            assert buffers[0].tolist() == [root + 0.5] * n
            assert buffers[1].tolist() == [[root, root]] * n
            assert buffers[2].tolist() == [True] * n
            assert buffers[3] == root
    comm.broadcast([], root=0)


def large_arrays_arrive_whole(comm: Comm, meet: Meet) -> None:
    count, rank_sum = 700_001, {1: 1, 2: 3, 3: 6, 4: 10}[comm.size]
    ramp = np.arange(count) % 1009
    sends = [ramp * (comm.rank + 1.0), (ramp[:5001] * (comm.rank + 1)).astype(np.int32)]
    recvs = [np.full_like(send, 99) for send in sends]
    comm.all_reduce(sends, recvs)
    assert np.array_equal(recvs[0], ramp * float(rank_sum))
    assert np.array_equal(recvs[1], ramp[:5001] * rank_sum)
    assert np.array_equal(sends[0], ramp * (comm.rank + 1.0))
    rows = comm.all_gather(ramp + comm.rank)
    assert all(np.array_equal(rows[rank], ramp + rank) for rank in range(comm.size))
    for root in range(comm.size):
        buffers = [ramp * 2 if comm.rank == root else ramp.copy(), np.array(comm.rank)]
        comm.broadcast(buffers, root=root)
        assert np.array_equal(buffers[0], ramp * 2)
        assert buffers[1] == root


def ranks_of_one_host_are_neighbours(comm: Comm, meet: Meet) -> None:
    assert (comm.local_rank, comm.local_size) == (comm.rank, comm.size)
    assert (comm.cross_rank, comm.cross_size) == (0, 1)
    assert sorted(comm.all_gather(np.array([comm.rank])).ravel().tolist()) == list(range(comm.size))


def agree_is_true_iff_all_say_so(comm: Comm, meet: Meet) -> None:
    assert comm.agree(True) is True
    assert comm.agree(False) is False
    for naysayer in range(comm.size):
        assert comm.agree(comm.rank != naysayer) is False
    assert comm.agree(True) is True


def nobody_agrees_before_everybody_has_spoken(comm: Comm, meet: Meet) -> None:
    for last in range(comm.size):
        comm.agree(True)
        if comm.rank == last:
            time.sleep(0.02)  # the others have time to return too early
        spoke = time.monotonic()
        comm.agree(True)
        returned = time.monotonic()
        moments = comm.all_gather(np.array([spoke, returned]))
        assert moments[:, 1].min() >= moments[:, 0].max()


def wrong_arguments_are_refused_before_anything_is_sent(comm: Comm, meet: Meet) -> None:
    a, b = np.zeros(4, np.float32), np.zeros(4, np.float32)
    strided = np.zeros((4, 4), np.float32)[:, 0]
    for message, call in {
        "one recv per send, got 1 sends and 2 recvs": lambda: comm.all_reduce([a], [b, b]),
        "one shape and dtype": lambda: comm.all_reduce([a], [b[:3]]),
        r"float32.*float64": lambda: comm.all_reduce([a], [np.zeros(4)]),
        "share memory": lambda: comm.all_reduce([a], [a]),
        "got bool": lambda: comm.all_reduce([np.zeros(2, bool)], [np.zeros(2, bool)]),
        "got float16": lambda: comm.all_reduce([np.zeros(2, np.float16)], [np.zeros(2, np.float16)]),
        "got >f4": lambda: comm.all_reduce([np.zeros(2, ">f4")], [np.zeros(2, ">f4")]),
        r"all_reduce takes C-contiguous.*\(16,\)": lambda: comm.all_reduce([a], [strided]),
        "all_gather takes C-contiguous": lambda: comm.all_gather(strided),
        "all_to_all takes C-contiguous": lambda: comm.all_to_all(np.zeros((comm.size, 4, 4))[:, :, 0]),
        rf"one row for each of {comm.size} ranks, got shape \(9,\)": lambda: comm.all_to_all(np.zeros(9)),
        "broadcast takes C-contiguous": lambda: comm.broadcast([a, strided], root=0),
        f"root must be in 0..{comm.size - 1}, got {comm.size}": lambda: comm.broadcast([a], root=comm.size),
        "got -1": lambda: comm.broadcast([a], root=-1),
        "deadline_seconds must be above 0, got 0": lambda: comm.agree(True, deadline_seconds=0),
        "got nan": lambda: comm.agree(True, deadline_seconds=float("nan")),
    }.items():
        with pytest.raises(ConfigError, match=message):
            call()
    assert comm.agree(True)


def a_rank_that_does_not_come_is_a_deadline_error(comm: Comm, meet: Meet) -> None:
    absent = comm.size - 1
    recvs = [np.zeros(5001, np.float32), np.zeros(3)]
    sends = [np.ones_like(recv) for recv in recvs]
    assert comm.agree(True)
    if comm.size > 1 and comm.rank != absent:
        begun = time.monotonic()
        with pytest.raises(
            DeadlineError,
            match=rf"^all_reduce did not end within 0.1 s; rank {comm.rank} of {comm.size} waited: ",
        ):
            comm.all_reduce(sends, recvs, deadline_seconds=0.1)
        assert 0.1 <= time.monotonic() - begun < 2.0
        for verb in (lambda: comm.agree(True), lambda: comm.all_gather(sends[0])):
            with pytest.raises(CommError, match="all_reduce did not end within"):
                verb()
    meet()
    if comm.size > 1 and comm.rank == absent:
        with contextlib.suppress(
            CommError
        ):  # where the others cannot tell, it comes late and finds their parts
            comm.all_reduce(sends, recvs)
            assert [recv.tolist() for recv in recvs] == [[comm.size] * 5001, [comm.size] * 3]
    assert all((send == 1).all() for send in sends)


def close_is_final_and_may_be_repeated(comm: Comm, meet: Meet) -> None:
    assert comm.agree(True)
    meet()
    comm.close()
    comm.close()
    one, two = np.zeros(1), np.zeros(1)
    for name, verb in {
        "all_gather": lambda: comm.all_gather(one),
        "all_reduce": lambda: comm.all_reduce([one], [two]),
        "broadcast": lambda: comm.broadcast([one], root=0),
        "all_to_all": lambda: comm.all_to_all(np.zeros((comm.size, 1))),
        "agree": lambda: comm.agree(True),
    }.items():
        with pytest.raises(CommError, match=f"rank {comm.rank} of {comm.size} cannot {name}: it was closed"):
            verb()


LAWS = {
    law.__name__: law
    for law in (
        all_gather_stacks_in_rank_order,
        all_gather_keeps_shape_and_dtype,
        all_gather_result_is_ones_own,
        all_gather_bytes_takes_uneven_and_empty,
        broadcast_bytes_takes_any_length_from_any_root,
        all_to_all_brings_each_rank_its_row_of_every_rank,
        all_reduce_sums_exactly_out_of_place,
        all_reduce_takes_many_pairs_of_mixed_dtypes,
        all_reduce_gives_the_same_bits,
        broadcast_overwrites_with_the_roots,
        large_arrays_arrive_whole,
        ranks_of_one_host_are_neighbours,
        agree_is_true_iff_all_say_so,
        nobody_agrees_before_everybody_has_spoken,
        wrong_arguments_are_refused_before_anything_is_sent,
        a_rank_that_does_not_come_is_a_deadline_error,
        close_is_final_and_may_be_repeated,
    )
}
IN_PARTS = (  # also where one call cannot name so many elements
    "all_gather_stacks_in_rank_order",
    "all_to_all_brings_each_rank_its_row_of_every_rank",
    "all_reduce_takes_many_pairs_of_mixed_dtypes",
    "all_reduce_gives_the_same_bits",
    "broadcast_overwrites_with_the_roots",
)
