"""NCCL fails, at every call: what the ranks make of it."""

from __future__ import annotations

import threading
import time

import pytest
from fake_cupy import FOREVER, HANG, FakeCupy
from nccl_rig import STREAM, arrays, outcome, parts_of, ranks, reduce
from waiting import until

from elche.comm import memory, nccl
from elche.comm.nccl import NcclComm
from elche.errors import CommError, DeadlineError

STATUSES = [1, 2, 3, 4, 5, 6, 8]  # all that NCCL can fail with; 7 is no failure

IN_A_SUM = [
    ("setDevice", 1),
    ("groupStart", 0),
    ("allReduce", 0),
    ("allReduce", 1),
    ("groupEnd", 0),
    ("check_async_error", 0),
]


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize(
    ("where", "rank"), [("get_unique_id", 0), ("init", 0), ("init", 1), ("setDevice", 1)]
)
def test_a_failure_to_connect_is_told_alike_on_all_ranks(where, rank, status, monkeypatch):
    monkeypatch.setattr(nccl, "CONNECT_SECONDS", 0.3)  # the others wait for the one that failed

    def live(comm, cupy):
        reason = comm.connect()
        with pytest.raises(CommError, match="cannot all_reduce by NCCL"):
            comm.launch([], STREAM)
        return reason, cupy.names(), comm.host.agree(True)

    (reason, *_), (other, *_) = told = ranks(2, live, faults={rank: {(where, 0): status}})
    assert reason == other
    verb = "get_unique_id" if where == "get_unique_id" else "init"
    assert verb in reason
    assert "did not end in time" in reason or "as told" in reason or "result 8" in reason
    assert status == 8 or reason.startswith(f"rank {rank}: ")
    for _, names, agreed in told:
        assert names[-2:] == ["abort", "destroy"]
        assert agreed, "the host's way is intact"


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("where", IN_A_SUM)
def test_a_failing_sum_ends_on_all_ranks(where, status):
    def live(comm, cupy):
        assert comm.connect() is None
        owns, sums = arrays(comm.host.rank)
        if comm.host.rank == 1:
            error = outcome(reduce, comm, cupy, owns, sums)
            others.set()
        else:
            comm.host.watch = lambda: outcome_of_roll(others)
            error = None
            try:
                reduce(comm, cupy, owns, sums)
            except CommError as caught:
                error = caught
        comm.end()
        return error, comm.failed, cupy.names(), owns

    others = threading.Event()

    def outcome_of_roll(event):
        if event.is_set():
            raise CommError("processes [1] call the roll")

    (other, unfailed, names, owns), (error, failed, failing, _) = ranks(2, live, faults={1: {where: status}})
    assert isinstance(error, DeadlineError if status == 8 else CommError)
    assert type(error) is (DeadlineError if status == 8 else CommError)
    assert "rank 1 of 2" in str(error)
    assert failed is not None
    assert failed in str(error)
    assert unfailed is None
    assert other is None or "call the roll" in str(other)  # its sum may have been done
    assert owns[0].tolist() == [0, 1, 2, 3, 4], "what was accumulated stays whole"
    assert failing[-2:] == names[-2:] == ["abort", "destroy"]
    assert failing.count("groupStart") == failing.count("groupEnd") + (where[0] == "groupStart")


def test_errors_of_cuda_are_no_results_of_nccl():
    class CUDARuntimeError(RuntimeError):
        status = 7

    def live(comm, cupy):
        assert comm.connect() is None
        return outcome(comm.launch, parts_of(*arrays(0)), STREAM)

    (error,) = ranks(1, live, faults={0: {("groupEnd", 0): CUDARuntimeError("illegal address")}})
    assert str(error) == "NCCL's all_reduce failed: illegal address, on rank 0 of 1"


def test_an_error_behind_a_sum_that_ended_counts():
    """A kernel that NCCL gave up ends, and so does the event behind it."""

    def live(comm, cupy):
        assert comm.connect() is None
        comm.launch(parts_of(*arrays(0)), STREAM)
        cupy.communicators[0].async_error = 6
        return outcome(comm.wait, lambda: True)

    (error,) = ranks(1, live)
    assert "NCCL_ERROR_REMOTE_ERROR" in str(error)


def test_a_sum_that_never_ends_meets_its_deadline():
    def live(comm, cupy):
        assert comm.connect() is None
        comm.host.deadline_seconds = 0.2
        begun = time.perf_counter()
        comm.launch(parts_of(*arrays(0)), STREAM)
        error = outcome(comm.wait, lambda: False)
        comm.end()
        return error, time.perf_counter() - begun, cupy.names()

    ((error, seconds, names),) = ranks(1, live)
    assert isinstance(error, DeadlineError)
    assert "all_reduce did not end in time" in str(error)
    assert 0.2 <= seconds < 2
    assert names[-2:] == ["abort", "destroy"]


@pytest.mark.parametrize("where", ["init", "groupEnd", "allReduce"])
@pytest.mark.parametrize("by", ["deadline", "watch"])
def test_a_call_that_hangs_is_aborted_from_outside(where, by, monkeypatch):
    monkeypatch.setattr(nccl, "CONNECT_SECONDS", 0.2)
    begun = time.perf_counter()

    def watch():
        if time.perf_counter() - begun > 0.1:
            raise CommError("processes [1] are gone")

    def live(comm, cupy):
        comm.host.watch, comm.host.deadline_seconds = (watch, 5.0) if by == "watch" else (None, 0.2)
        try:
            reason = comm.connect()
            if where != "init":
                comm.launch(parts_of(*arrays(0)), STREAM)
        except CommError as error:
            reason = str(error)
        comm.end()
        return reason, cupy.names()

    before = threading.active_count()
    ((reason, names),) = ranks(1, live, faults={0: {(where, 0): HANG}})
    assert ("did not end in time" if by == "deadline" else "processes [1] are gone") in reason
    assert "abort" in names
    until(lambda: threading.active_count() <= before, 5.0)


def test_a_call_that_begins_after_the_abort_is_aborted_too():
    """An abort finds nothing before NCCL has made its communicator."""
    cupy = FakeCupy(faults={("setDevice", 0): FOREVER})
    comm = NcclComm(cupy, memory.single(deadline_seconds=0.1), 0)
    release = threading.Timer(0.3, cupy.released.set)
    release.start()
    assert comm.connect() == "rank 0: NCCL's init did not end in time"
    assert "init" in cupy.names()
    assert cupy.names()[-2:] == ["abort", "destroy"]
    assert cupy.communicators[0].comm == 0
    release.join()


def test_giving_up_does_not_wait_and_its_end_has_a_limit():
    def live(comm, cupy):
        assert comm.connect() is None
        begun = time.perf_counter()
        comm.retire()
        comm.retire()
        assert time.perf_counter() - begun < 1
        error = outcome(lambda: comm.end(limit_seconds=0.05))
        assert cupy.names()[-1] == "abort", "nothing is destroyed before it is aborted"
        cupy.released.set()
        comm.end()
        return error, cupy.names()

    ((error, names),) = ranks(1, live, faults={0: {("abort", 0): FOREVER}})
    assert not isinstance(error, CommError), "no view can be found for a rank whose GPU is stuck"
    assert "its GPU is stuck, and this process cannot go on" in str(error)
    assert names[-2:] == ["abort", "destroy"]
    assert names.count("abort") == 1


def test_an_abort_that_fails_is_told():
    def live(comm, cupy):
        assert comm.connect() is None
        return outcome(comm.end), cupy.names()

    ((error, names),) = ranks(1, live, faults={0: {("abort", 0): RuntimeError("not in this version")}})
    assert "abort failed on rank 0 of 1: not in this version" in str(error)
    assert "destroy" not in names
