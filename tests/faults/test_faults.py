"""The table of faults, by (process, window), under real mpirun: the job goes on, and its laws hold."""

from __future__ import annotations

import pytest
from fault_laws import check
from fault_points import SLOW_WINDOWS, Fault
from fault_trainings import LONG, MLP, NORM

from elche.elastic import checkpoint as checkpoints


def test_ends_of_all_kinds_one_after_the_other_down_to_one_rank(train):
    job, err = train(
        5,
        {**MLP, "epochs": 3},
        Fault(process=4, kind="kill", window=3),
        Fault(process=2, kind="segv", window=6, number=1),
        Fault(process=0, kind="exit_0", window=9),
        Fault(process=3, kind="raise", window=12, number=1),
    )
    check(job)
    assert err.count("process 3 was told to raise") == 1


def test_ends_that_are_no_kills(train):
    job, err = train(
        5,
        {**NORM, "epochs": 3},
        Fault(process=1, kind="raise_in_thread", window=3),
        Fault(process=0, kind="sys_exit_5", window=6, number=1),
        Fault(process=2, kind="term", window=9),
        Fault(process=4, kind="leave_loop", window=12, number=1),
    )
    check(job)
    assert err.count("process 1 was told to raise") == 1


def test_the_first_window_the_last_of_an_epoch_and_between_epochs(train):
    job, _ = train(
        6,
        {**NORM, "epochs": 4},
        Fault(process=0, kind="kill"),
        Fault(process=3, kind="kill"),
        Fault(process=5, kind="kill", at="last", window=4),
        Fault(process=1, kind="kill", at="epoch", window=4),
        Fault(process=4, kind="kill", at="load", window=40),
    )
    check(job)
    assert {fired["process"] for fired in job.fired if fired["window"] == 0} == {0, 3}


@pytest.mark.parametrize("sent", [pytest.param(0, marks=pytest.mark.soak), 1, "all"])
def test_during_exchange_all_reduce_and_agreement(train, sent):
    """All: it is gone after all its messages are under way, so that the others may have all they need."""

    def number(others):
        return others if sent == "all" else sent

    job, _ = train(
        5,
        {**MLP, "epochs": 3},
        Fault(process=4, kind="kill", window=3, at="exchange", number=number(4)),
        Fault(process=0, kind="kill", window=6, at="all_reduce", number=number(3)),
        Fault(process=2, kind="kill", window=9, at="agree", number=number(2)),
        backend="mpi",  # on one host nothing is sent for a sum
    )
    check(job)


def test_while_ranks_add_up_what_they_share(train):
    job, _ = train(
        7,
        {**MLP, "epochs": 4},
        Fault(process=4, kind="kill", window=3, at="add", number=0),
        Fault(process=0, kind="kill", window=5, at="added", number=1),
        Fault(process=6, kind="kill", window=7, at="add", number=1),
        Fault(process=2, kind="raise", window=9, at="add", number=0),
        Fault(process=5, kind="kill", window=11, at="agree", number=1),
        Fault(process=1, kind="kill", window=13, at="added", number=1),
    )
    check(job)


def test_a_rank_that_stops_while_it_adds_up(train):
    """When it wakes it goes on adding, to what the others have left behind."""
    job, _ = train(
        3,
        {**MLP, **LONG},
        Fault(process=1, kind="stop", window=30, at="add", number=0),
        Fault(process=0, kind="stop", window=80, at="add", number=0),
        stall=1,
        stop={"lost": 2, "joined": 2},
    )
    check(job)


def test_between_agreement_and_commit_and_in_roll_calls(train):
    job, _ = train(
        7,
        {**NORM, "epochs": 3},
        Fault(process=0, kind="kill", window=3, at="commit"),
        Fault(process=6, kind="kill", window=3, at="roll call"),
        Fault(process=3, kind="kill", window=6, at="committed"),
        Fault(process=1, kind="kill", window=6, at="proposing"),
        Fault(process=5, kind="kill", window=9),
        Fault(process=2, kind="kill", window=9),
    )
    check(job)
    assert job.survivors == {4}


def test_before_the_first_window_and_in_a_checkpoint(train):
    job, _ = train(
        6,
        {**MLP, "epochs": 3},
        Fault(process=4, kind="kill", at="start", number=0),
        Fault(process=1, kind="kill", at="start", number=3),
        Fault(process=3, kind="kill", at="start", number=4),
        Fault(process=0, kind="kill", at="write"),
    )
    check(job)
    kept = checkpoints.newest(job.folder / "checkpoints")
    assert kept is not None
    assert checkpoints.read(kept)["job"]["epoch"] == 2


def test_silent_ranks_come_back(train):
    """One in each of four epochs of 50 windows: three of four at once would be too many to go on without."""
    job, _ = train(
        4,
        {**NORM, **LONG},
        Fault(process=1, kind="stop", at="middle", window=3),
        Fault(process=3, kind="loop", at="middle", window=60),
        Fault(process=0, kind="stop", at="middle", window=110),
        Fault(process=2, kind="block", window=160, at="load"),
        stall=1,
        stop={"lost": 4, "joined": 4},
    )
    check(job)
    assert sorted(joined["process"] for joined in job.events("joined")) == [0, 1, 2, 3]


def test_a_loop_over_plain_epochs_takes_a_rank_back(train):
    job, _ = train(
        3,
        {**MLP, **LONG, "epochs": 4},
        Fault(process=1, kind="stop", at="middle", window=3),
        Fault(process=0, kind="kill", at="epoch", window=150),
        stall=1,
        plain_loop=True,
    )
    check(job)
    assert [joined["process"] for joined in job.events("joined")] == [1]


def test_a_slow_rank_is_not_set_aside(train):
    job, _ = train(
        3,
        {**MLP, "epochs": 7},
        Fault(process=2, kind="slow", window=6),
        Fault(process=0, kind="kill", window=18),
    )
    check(job)
    first = next(fired["window"] for fired in job.fired if fired["kind"] == "slow")
    slow = [window["batches"] for window in job.events("window")[first + 2 : first + SLOW_WINDOWS]]
    own, others = sum(b[2] for b in slow), sum(b[0] + b[1] for b in slow) / 2
    assert own < others / 3


def test_losses_while_another_enters(train):
    job, _ = train(
        5,
        {**MLP, **LONG},
        Fault(process=4, kind="stop", at="middle", window=3),
        Fault(process=1, kind="kill", at="send"),
        Fault(process=3, kind="stop", at="middle", window=40),
        Fault(process=0, kind="kill", window=40, at="send", number=1),
        Fault(process=4, kind="stop", at="middle", window=80),
        Fault(process=4, kind="kill", window=80, at="receive", number=0),
        stall=1,
        stop={"lost": 5, "joined": 2},
    )
    check(job)


def test_a_spare_takes_the_place_of_the_lost_and_another_that_dies_while_it_enters_does_not(train):
    job, _ = train(
        2,
        {**NORM, **LONG},
        Fault(process=0, kind="kill", window=3),
        Fault(process=2, kind="kill", at="receive", number=1),
        spares=2,
        stop={"lost": 1, "joined": 1},
    )
    check(job)


def test_what_hangs_for_ever_is_ended_by_the_launcher(launch):
    job, err = launch(
        5,
        {**MLP, **LONG},
        Fault(process=1, kind="stop_for_ever", at="middle", window=3),
        Fault(process=2, kind="loop_for_ever", at="middle", window=3),
        Fault(process=3, kind="exit_3", at="middle", window=30),
        Fault(process=0, kind="block_for_ever", at="load", window=60),
        stall=1,
        stop={"lost": 4, "joined": 0},
    )
    check(job)
    lines = [line for line in err.splitlines() if "lost rank" in line]
    assert [sum(f"lost rank {process} " in line for line in lines) for process in range(5)] == [1, 1, 1, 1, 0]


def test_memory_stays_flat_over_twenty_losses_and_returns(train):
    rounds = [Fault(process=1, kind="stop", at="middle", window=30 * n) for n in range(20)]
    job, _ = train(3, {**MLP, **LONG}, *rounds, stall=1, stop={"lost": 20, "joined": 20})
    check(job)
    resident = job.results[0]["resident_bytes"]
    assert len(resident) == 40
    assert resident[-1] - resident[9] < 6e6
