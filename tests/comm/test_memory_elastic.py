"""Processes as threads: how they end, are killed, stopped and resumed, and what the others see of it."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from rendezvous_laws import SeenError, Watch, connect, everyone, until

from elche.comm import meeting, memory
from elche.comm.memory_rendezvous import Killed, Machine, MemoryRendezvous, Outcome, run_elastic
from elche.errors import CommError, ConfigError, DeadlineError


def processes(n):
    """All in this thread, for what does not wait."""
    machine = Machine(n)
    return machine, [MemoryRendezvous(machine, process) for process in range(n)]


def was_killed(process, outcome):
    assert isinstance(outcome.error, Killed)
    assert f"process {process} was killed" in str(outcome.error)


def test_results_and_errors_come_by_process():
    error = ZeroDivisionError("no such share")

    def live(rendezvous, factor):
        if rendezvous.process == 1:
            raise error
        return factor * rendezvous.process + rendezvous.num_processes

    assert run_elastic(3, live, 10) == [Outcome(result=3), Outcome(error=error), Outcome(result=23)]


@pytest.mark.parametrize("ends", ["returns", "raises"])
def test_who_ends_is_gone_at_once(ends):
    def live(rendezvous):
        comm = connect(rendezvous, everyone(rendezvous), "all")
        if rendezvous.process == 1:
            assert ends == "returns", "it raises"
            return None
        begun = time.monotonic()
        with pytest.raises(CommError, match=r"ranks \[1\] have left"):
            comm.agree(True)
        assert time.monotonic() - begun < 1
        return rendezvous.gone()

    outcomes = run_elastic(2, live)
    assert outcomes[0] == Outcome(result=frozenset({1}))
    assert isinstance(outcomes[1].error, AssertionError if ends == "raises" else type(None))


def test_who_has_not_returned_in_time_is_named_and_killed():
    ended = threading.Event()

    def live(rendezvous):
        if rendezvous.process == 0:
            raise ZeroDivisionError
        try:
            until(rendezvous.receive)
        finally:
            ended.set()

    with pytest.raises(DeadlineError, match=r"within 0.2 s; processes \[1\] of 2 have not") as raised:
        run_elastic(2, live, timeout_seconds=0.2)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert ended.wait(5)


@pytest.mark.parametrize("n", [0, -1])
def test_a_machine_without_processes_is_refused(n):
    with pytest.raises(ConfigError, match=f"must be at least 1, got {n}"):
        run_elastic(n, lambda rendezvous: None)


def test_every_call_of_a_killed_process_ends_it():
    machine, (one, two) = processes(2)
    comm = connect(one, [0], "alone")
    machine.kill(0)
    machine.kill(0)
    for call in (
        lambda: connect(one, [0], "again"),
        lambda: one.send(1, b"x"),
        one.receive,
        one.gone,
        lambda: one.propose("a", "b"),
        lambda: one.look_up("a"),
        lambda: comm.all_gather(np.zeros(1)),
        lambda: comm.all_reduce([np.zeros(1)], [np.zeros(1)]),
        lambda: comm.broadcast([np.zeros(1)], root=0),
        lambda: comm.agree(True),
        comm.revoke,
        comm.close,
        lambda: comm.abort(1),
    ):
        with pytest.raises(Killed, match="process 0 was killed"):
            call()
    assert two.gone() == {0}
    assert two.receive() == []
    assert two.look_up("a") is None


@pytest.mark.parametrize("where", ["connect", "agree"])
def test_a_kill_ends_the_call_under_way_and_fails_the_others(where):
    def live(rendezvous):
        comm = connect(rendezvous, [0, 1, 2], "all")
        if rendezvous.process == 0:
            until(lambda: len(comm._meeting._values) == 2 or len(rendezvous.machine._meetings) > 1)
            rendezvous.machine.kill(1)
            return until(lambda: rendezvous.gone() == {1, 2})
        try:
            connect(rendezvous, [0, 1, 2], "more") if where == "connect" else comm.agree(True)
        except CommError as error:
            return str(error)

    outcomes = run_elastic(3, live, timeout_seconds=20)
    assert outcomes[0] == Outcome()
    was_killed(1, outcomes[1])
    assert "ranks [1] have left" in outcomes[2].result


def test_a_killed_process_has_no_result():
    def live(rendezvous):
        rendezvous.machine.kill(rendezvous.process)
        return "done"

    (outcome,) = run_elastic(1, live)
    was_killed(0, outcome)
    assert outcome.result is None


def test_a_daemon_of_a_dead_process_ends_on_an_ordinary_error():
    errors = []

    def beat(rendezvous):
        try:
            while True:
                rendezvous.send(1, b"alive")
                time.sleep(1e-3)
        except CommError as error:
            errors.append(str(error))

    def live(rendezvous):
        daemon = threading.Thread(target=beat, args=(rendezvous,), daemon=True)
        if rendezvous.process == 0:
            daemon.start()
            return daemon
        until(lambda: 0 in rendezvous.gone())
        rendezvous.receive()
        assert rendezvous.receive() == []
        return None

    outcomes = run_elastic(2, live)
    assert outcomes[1] == Outcome()
    outcomes[0].result.join(5)
    assert errors == ["process 0 has ended"]


def test_a_stopped_process_is_silent_and_not_gone():
    def live(rendezvous):
        machine, comm = rendezvous.machine, connect(rendezvous, [0, 1], "all")
        if rendezvous.process == 1:
            rendezvous.send(0, b"first")
            until(lambda: 1 in machine._stopped)
            rendezvous.send(0, b"second")
            return rendezvous.receive()
        until(lambda: rendezvous.receive() == [(1, b"first")])
        machine.stop(1)
        rendezvous.send(1, b"one")
        rendezvous.send(1, b"two")
        with pytest.raises(DeadlineError):
            comm.agree(True, deadline_seconds=0.1)
        assert rendezvous.gone() == frozenset()
        assert rendezvous.receive() == []
        machine.resume(1)
        until(lambda: rendezvous.receive() == [(1, b"second")])
        return None

    assert run_elastic(2, live, timeout_seconds=20) == [
        Outcome(),
        Outcome(result=[(0, b"one"), (0, b"two")]),
    ]


def test_a_verb_of_a_stopped_process_ends_when_it_is_resumed():
    returned = threading.Event()

    def live(rendezvous):
        machine, comm = rendezvous.machine, connect(rendezvous, [0, 1], "all")
        if rendezvous.process == 1:
            rows = comm.all_gather(np.array([1.0]))
            returned.set()
            return rows.ravel().tolist()
        until(lambda: 1 in comm._meeting._values)
        machine.stop(1)
        rows = comm.all_gather(np.array([0.5]))  # the other has given its part before it was stopped
        assert not returned.wait(0.1)
        machine.resume(1)
        return rows.ravel().tolist()

    assert run_elastic(2, live, timeout_seconds=20) == [Outcome(result=[0.5, 1.0])] * 2


def test_a_stopped_process_can_be_killed_and_does_not_end_before():
    def live(rendezvous):
        if rendezvous.process == 1:
            rendezvous.machine.stop(1)
            return
        assert rendezvous.gone() == frozenset()
        until(lambda: 1 in rendezvous.machine._stopped)
        rendezvous.machine.kill(1)

    outcomes = run_elastic(2, live, timeout_seconds=20)
    assert outcomes[0] == Outcome()
    was_killed(1, outcomes[1])


def test_who_comes_late_meets_nobody():
    left = threading.Event()

    def live(rendezvous):
        if rendezvous.process == 0:
            with pytest.raises(DeadlineError, match=r"connect did not end within 0.05 s; rank 0 of 2"):
                rendezvous.connect([0, 1], "late", deadline_seconds=0.05)
            left.set()
        else:
            assert left.wait(20)
            with pytest.raises(CommError, match=r"ranks \[0\] have left"):
                connect(rendezvous, [0, 1], "late")
        assert connect(rendezvous, [0, 1], "again").agree(True)

    assert run_elastic(2, live, timeout_seconds=20) == [Outcome()] * 2


def test_abort_kills_every_process():
    def live(rendezvous):
        comm = connect(rendezvous, everyone(rendezvous), "all")
        if rendezvous.process == 2:
            comm.abort(4)
        comm.agree(True)

    for outcome in run_elastic(3, live, timeout_seconds=20):
        assert isinstance(outcome.error, Killed)
        assert "process 2 aborted with exit code 4" in str(outcome.error)


def test_wrong_members_and_long_texts_are_refused():
    _, (one, two, _) = processes(3)
    for members in ([1, 2], [0, 0], [0, 3], [0, -1], []):
        with pytest.raises(ConfigError, match=r"process 0 connects different ones of 0\.\.2, itself among"):
            connect(one, members, "wrong")
    with pytest.raises(ConfigError, match="must be at most 40 bytes, got 41"):
        one.propose("n" * 41, "x")
    with pytest.raises(ConfigError, match="must be at most 3000 bytes, got 3002"):
        one.propose("n", "ü" * 1501)
    assert two.look_up("n") is None
    with pytest.raises(ConfigError, match="deadline_seconds must be above 0, got 0"):
        one.connect([0], "soon", deadline_seconds=0)


def test_a_watch_may_use_what_it_watches_over():
    comm = memory.MemoryComm(meeting.Meeting(2), 0)
    comm.watch = comm.revoke
    with pytest.raises(CommError, match="rank 0 revoked the communicator"):
        comm.agree(True)


def test_what_a_watch_raises_makes_the_rank_leave():
    def work(comm):
        if comm.rank == 0:
            comm.watch = Watch(last=3)
            with pytest.raises(SeenError):
                comm.agree(True)
            with pytest.raises(CommError, match="cannot agree: agree ended with SeenError"):
                comm.agree(True)
        else:
            until(lambda: comm._meeting.left() == [0])
            assert comm.agree(True)  # what it had said counts
            with pytest.raises(CommError, match=r"ranks \[0\] have left"):
                comm.agree(True)

    memory.run(2, work, timeout_seconds=20)
