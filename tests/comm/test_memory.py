"""What only threads can do: the first cause, ranks that leave, time-outs, calls that do not match."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from elche.comm import memory
from elche.errors import CommError, ConfigError, DeadlineError


def test_results_come_in_rank_order():
    assert memory.run(3, lambda comm, a, b: (comm.rank, comm.size, a + b), 4, 5) == [
        (0, 3, 9),
        (1, 3, 9),
        (2, 3, 9),
    ]


def test_single_is_a_world_of_one():
    comm = memory.single()
    recv = np.zeros(3)
    comm.all_reduce([np.array([1.0, 2.0, 3.0])], [recv])
    assert recv.tolist() == [1.0, 2.0, 3.0]
    assert (comm.rank, comm.size, comm.local_size, comm.cross_size) == (0, 1, 1, 1)
    assert threading.active_count() == 1


def test_sums_run_in_rank_order():
    parts = [np.float32(1e8), np.float32(-1e8), np.float32(1.0)]  # any other order gives 0

    def total(comm):
        recv = np.zeros(1, np.float32)
        comm.all_reduce([np.array([parts[comm.rank]])], [recv])
        return float(recv[0])

    assert memory.run(3, total) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_the_first_error_is_raised_and_the_others_fail_at_once(culprit):
    others = {}

    def work(comm):
        comm.agree(True)
        if comm.rank == culprit:
            raise ZeroDivisionError("no such share")
        try:
            comm.agree(True)
        except CommError as error:
            others[comm.rank] = str(error)
            raise

    begun = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="no such share"):
        memory.run(3, work, timeout_seconds=20)
    assert time.monotonic() - begun < 5
    assert len(others) == 2
    assert all(
        f"rank {culprit} ended with ZeroDivisionError: no such share" in text for text in others.values()
    )


def test_a_deadline_counts_before_what_follows_from_it():
    passed = threading.Event()

    def work(comm):
        if comm.rank == 0:
            try:
                comm.agree(True, deadline_seconds=0.05)
            finally:
                passed.set()
        passed.wait(20)
        comm.agree(True)
        comm.agree(True)

    with pytest.raises(DeadlineError, match=r"agree did not end within 0.05 s; rank 0 of 3 waited"):
        memory.run(3, work, timeout_seconds=20)


@pytest.mark.parametrize("leave", [lambda comm: None, lambda comm: comm.close()], ids=["returns", "closes"])
def test_waiting_for_a_rank_that_has_left_fails_at_once(leave):
    def work(comm):
        if comm.rank == 1:
            return leave(comm)
        return comm.agree(True)

    with pytest.raises(CommError, match=r"agree failed on rank 0 of 2: ranks \[1\] have left"):
        memory.run(2, work, timeout_seconds=20)


def test_what_a_rank_said_before_it_left_counts():
    assert memory.run(2, lambda comm: comm.agree(True)) == [True, True]


def test_different_calls_fail_on_all_ranks_and_are_named():
    def work(comm):
        with pytest.raises(CommError, match=r"0: 'agree', 1: 'all_gather of float64\[2\]'"):
            comm.all_gather(np.zeros(2)) if comm.rank else comm.agree(True)

    memory.run(2, work, timeout_seconds=20)


def test_different_shapes_fail_on_all_ranks():
    def work(comm):
        with pytest.raises(CommError, match=r"float32\[3\].*float32\[4\]"):
            comm.broadcast([np.zeros(3 + comm.rank, np.float32)], root=0)

    memory.run(2, work, timeout_seconds=20)


def test_abort_wakes_the_others():
    def work(comm):
        if comm.rank == 1:
            comm.abort(7)
        with pytest.raises(CommError, match="rank 1 aborted with exit code 7"):
            comm.agree(True)

    memory.run(3, work, timeout_seconds=20)


def test_run_names_the_ranks_that_do_not_return():
    stuck = threading.Event()

    def work(comm):
        if comm.rank == 1:
            stuck.wait(20)
        else:
            comm.agree(True)

    with pytest.raises(DeadlineError, match=r"did not end within 0.2 s; ranks \[1\] of 3 have not returned"):
        memory.run(3, work, timeout_seconds=0.2)
    stuck.set()


@pytest.mark.parametrize("n", [0, -1])
def test_a_world_without_ranks_is_refused(n):
    with pytest.raises(ConfigError, match=f"n must be at least 1, got {n}"):
        memory.run(n, lambda comm: None)
