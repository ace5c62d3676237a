"""Bytes by NCCL, from each rank to each and from one to all, against a recording fake of CuPy."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from fake_cupy import HANG
from nccl_rig import STREAM, outcome, ranks
from waiting import until

from elche.comm.nccl_parts import Gather, Receive, Send
from elche.errors import CommError, DeadlineError

STATUSES = [1, 2, 3, 4, 5, 6, 8]  # all that NCCL can fail with; 7 is no failure


def rows_of(rank, n):
    """A row of 5 bytes for each rank: who sends it, who gets it, and three more."""
    return np.array([[rank, peer, 7, 8, 9] for peer in range(n)], np.uint8)


def all_to_all(comm, cupy, sent_wb, got_wb):
    parts = []
    for peer, (sent_b, got_b) in enumerate(zip(sent_wb, got_wb, strict=True)):
        parts += [Send(sent_b.ctypes.data, 5, peer), Receive(got_b.ctypes.data, 5, peer)]
    comm.launch(parts, STREAM)
    comm.wait(cupy.mark())


def all_gather(comm, cupy, sent_b, got_wb):
    comm.launch([Gather(sent_b.ctypes.data, got_wb.ctypes.data, 5)], STREAM)
    comm.wait(cupy.mark())


def both(comm, cupy):
    """All to all, then what rank 2 of three would sum there to all; return what came."""
    n, rank = comm.host.size, comm.host.rank
    sent_wb = rows_of(rank, n)
    got_wb, told_wb = np.zeros_like(sent_wb), np.zeros_like(sent_wb)
    all_to_all(comm, cupy, sent_wb, got_wb)
    all_gather(comm, cupy, got_wb[n - 1], told_wb)
    return got_wb, told_wb, sent_wb


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_what_arrives_and_which_calls(n):
    def live(comm, cupy):
        assert comm.connect() is None
        return both(comm, cupy), [call for call in cupy.calls if call[0] != "check_async_error"]

    for rank, ((got_wb, told_wb, sent_wb), calls) in enumerate(ranks(n, live)):
        assert got_wb[:, :2].tolist() == [[peer, rank] for peer in range(n)]
        assert told_wb[:, :2].tolist() == [[n - 1, peer] for peer in range(n)]
        made = calls[calls.index(("init", 0, n, rank)) + 1 :]
        at = sent_wb.ctypes.data, got_wb.ctypes.data
        assert made == [
            ("setDevice", 4 + rank),
            ("groupStart",),
            *(
                (name, 0, address + 5 * peer, 5, 1, peer, STREAM)
                for peer in range(n)
                for name, address in zip(("send", "recv"), at, strict=True)
            ),
            ("groupEnd",),
            ("setDevice", 4 + rank),
            ("groupStart",),
            ("allGather", 0, at[1] + 5 * (n - 1), told_wb.ctypes.data, 5, 1, STREAM),
            ("groupEnd",),
        ]


def test_nothing_moves_before_the_group_ends():
    """A rank that has sent waits for the other one, which has its group still to end."""

    def live(comm, cupy):
        assert comm.connect() is None
        sent_wb = rows_of(comm.host.rank, 2)
        got_wb = np.zeros_like(sent_wb)
        before = []
        if comm.host.rank == 1:
            end = cupy.cuda.nccl.groupEnd

            def noted_end():
                before.append(got_wb.copy())
                end()

            cupy.cuda.nccl.groupEnd = noted_end
        all_to_all(comm, cupy, sent_wb, got_wb)
        return before, got_wb

    _, (before, got_wb) = ranks(2, live)
    assert before[0].max() == 0
    assert got_wb[:, 1].tolist() == [1, 1]


def test_a_send_that_nobody_takes_is_found():
    """The real one would wait for ever: the fake says so."""

    def live(comm, cupy):
        assert comm.connect() is None
        row_b = rows_of(0, 1)[0]
        return outcome(comm.launch, [Send(row_b.ctypes.data, 5, 0)], STREAM)

    (error,) = ranks(1, live)
    assert "a send without its recv" in str(error)


IN_BOTH = [
    ("setDevice", 1),
    ("groupStart", 0),
    ("send", 0),
    ("recv", 0),
    ("send", 1),
    ("recv", 1),
    ("groupEnd", 0),
    ("check_async_error", 0),
    ("groupStart", 1),
    ("allGather", 0),
    ("groupEnd", 1),
]


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("where", IN_BOTH)
def test_a_failure_at_any_call_ends_both_ranks(where, status):
    failed = threading.Event()

    def watch():
        if failed.is_set():
            raise CommError("processes [1] call the roll")

    def live(comm, cupy):
        assert comm.connect() is None
        error = None
        if comm.host.rank == 1:
            error = outcome(both, comm, cupy)
            failed.set()
        else:
            comm.host.watch = watch
            try:
                both(comm, cupy)
            except CommError as caught:
                error = caught
        comm.end()
        return error, comm.failed, cupy.names()

    (other, unfailed, names), (error, told, failing) = ranks(2, live, faults={1: {where: status}})
    assert type(error) is (DeadlineError if status == 8 else CommError)
    assert "rank 1 of 2" in str(error)
    assert told is not None
    assert told in str(error)
    assert unfailed is None
    assert other is None or "call the roll" in str(other)  # all may have arrived there
    assert failing[-2:] == names[-2:] == ["abort", "destroy"]
    assert failing.count("groupStart") == failing.count("groupEnd") + (where[0] == "groupStart")


@pytest.mark.parametrize("where", [place for place in IN_BOTH if place[0] not in ("setDevice", "groupStart")])
def test_in_progress_is_no_failure(where):
    def live(comm, cupy):
        assert comm.connect() is None
        got_wb, told_wb, _ = both(comm, cupy)
        return got_wb[:, 0].tolist(), told_wb[:, 1].tolist(), comm.failed

    assert ranks(2, live, faults={0: {where: 7}}) == [([0, 1], [0, 1], None)] * 2


@pytest.mark.parametrize(
    "where", [("send", 0), ("recv", 0), ("groupEnd", 0), ("allGather", 0), ("groupEnd", 1)]
)
def test_a_call_that_hangs_meets_its_deadline_and_is_aborted(where):
    def live(comm, cupy):
        assert comm.connect() is None
        comm.host.deadline_seconds = 0.2
        error = outcome(both, comm, cupy)
        comm.end()
        return error, cupy.names()

    before = threading.active_count()
    ((error, names),) = ranks(1, live, faults={0: {where: HANG}})
    assert isinstance(error, DeadlineError)
    assert "did not end in time" in str(error)
    assert "abort" in names
    until(lambda: threading.active_count() <= before, 5.0)
