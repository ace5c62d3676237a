"""What follows from what guards and ranks tell: orders, exit codes, last lines."""

from __future__ import annotations

from typing import Any

import pytest

from elche.mpi_launch.verdict import End, Record

LOST = {"event": "lost", "process": 2, "slot": 2, "cause": "died", "epoch": 1, "window": 37}
COST = {"batches": 3, "heal_ms": 12.4}
FINISHED = {"event": "stop", "reason": "finished", "exit_code": 0}
STOPPED = {"event": "stop", "reason": "finished", "exit_code": 143}
FAILED_ALONE = {"event": "stop", "reason": "error", "exit_code": 1}
LEFT_ALONE = {"event": "stop", "reason": "left", "exit_code": 0}


def ended(code: int) -> dict[str, Any]:
    return {"event": "ended", "code": code}


def record(
    *told: tuple[int, dict[str, Any]], ranks: int = 3, processes: int = 3, outlives: bool = True
) -> Record:
    made = Record(ranks, processes, outlives_losses=outlives)
    for process in range(processes):
        made.note(process, {"event": "started", "process": process})
    for sender, message in told:
        made.note(sender, message)
    return made


ALL_WELL = [(0, FINISHED), (1, FINISHED), (2, FINISHED), (0, ended(0)), (1, ended(0)), (2, ended(0))]


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (ALL_WELL, 0),
        ([(0, ended(0)), (1, ended(0)), (2, ended(0))], 0),
        ([(0, ended(1)), (1, ended(0)), (2, ended(1))], 0),
        ([(0, ended(1)), (1, ended(1)), (2, ended(-9))], 1),
        ([(0, ended(0)), (1, {**LOST, "process": 0, "cause": "left"}), (1, ended(1)), (2, ended(1))], 1),
        (
            [
                (0, {"event": "stop", "reason": "below min_ranks", "exit_code": 4}),
                (0, ended(4)),
                (1, ended(-9)),
            ],
            4,
        ),
        ([(0, {"event": "stop", "reason": "stalled", "exit_code": 5}), (1, FINISHED)], 0),
        ([(p, {"event": "stop", "reason": "SIGTERM", "exit_code": 143}) for p in range(3)], 143),
        ([(0, FAILED_ALONE), (0, ended(1)), (1, STOPPED), (2, STOPPED)], 143),
        (
            [
                (0, LEFT_ALONE),
                (0, ended(0)),
                (1, {**LOST, "process": 0, "cause": "left"}),
                (1, ended(1)),
                (2, ended(1)),
            ],
            1,
        ),
        ([(p, LEFT_ALONE) for p in range(3)] + [(p, ended(0)) for p in range(3)], 0),
        ([(0, {"event": "vanished"}), (1, {"event": "vanished"}), (2, {"event": "vanished"})], 1),
    ],
)
def test_the_exit_code(told: list[tuple[int, dict[str, Any]]], code: int) -> None:
    assert record(*told).exit_code(None, strict=False) == code


def test_losses_show_in_the_code_only_where_asked() -> None:
    lossy = record((0, LOST), *ALL_WELL[:2], (2, ended(-9)))
    assert (lossy.exit_code(None, strict=False), lossy.exit_code(None, strict=True)) == (0, 3)
    assert record(*ALL_WELL).exit_code(None, strict=True) == 0


@pytest.mark.parametrize(
    ("end", "code"),
    [(End.SIGHUP, 129), (End.SIGINT, 130), (End.SIGTERM, 143), (End.TOO_MANY_FAILURES, 1), (End.STALLED, 5)],
)
def test_why_the_launcher_ended_it_counts_more(end: End, code: int) -> None:
    assert record(*ALL_WELL).exit_code(end, strict=True) == code


def test_a_spare_that_ends_says_nothing_of_the_job() -> None:
    told = [(0, STOPPED), (1, STOPPED), (2, STOPPED), (3, FINISHED), (3, ended(0))]
    assert record(*told, processes=4).exit_code(None, strict=False) == 143


def test_spares_and_seats_finish_nothing_unless_they_have_joined() -> None:
    told = [(0, ended(1)), (1, ended(1)), (2, ended(1)), (3, ended(0))]
    assert record(*told, processes=4).exit_code(None, strict=False) == 1
    joined = (0, {"event": "joined", "process": 3, "slot": 0})
    assert record(joined, *told, processes=4).exit_code(None, strict=False) == 0


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        (ALL_WELL, []),
        (
            [(0, {**LOST, **COST}), (1, {**LOST, **COST, "heal_ms": 11}), (2, ended(-9))],
            ["lost rank 2 (slot 2) in epoch 1, window 37: died (killed by signal 9); "
             "3 batches dealt again, healed in 12 ms"],
        ),
        ([(2, ended(3)), (0, LOST)], ["lost rank 2 (slot 2) in epoch 1, window 37: died (exit code 3)"]),
        ([(0, {**LOST, "batches": 1})],
         ["lost rank 2 (slot 2) in epoch 1, window 37: died; 1 batch dealt again"]),
        (
            [(0, {**LOST, "cause": "silent", "batches": 0}), (0, {"event": "joined", "process": 2})],
            ["lost rank 2 (slot 2) in epoch 1, window 37: silent; 0 batches dealt again; came back"],
        ),
        (
            [(0, {**LOST, "cause": "silent"}), (0, {"event": "joined", "process": 2}), (2, ended(1))],
            ["lost rank 2 (slot 2) in epoch 1, window 37: silent; came back",
             "lost rank 2: died (exit code 1)"],
        ),
        ([(0, {**LOST, "cause": "silent"}), (2, ended(-9))],
         ["lost rank 2 (slot 2) in epoch 1, window 37: silent"]),
        ([(0, {**LOST, "cause": "left"}), (2, ended(0))],
         ["lost rank 2 (slot 2) in epoch 1, window 37: left"]),
        ([(1, ended(-11))], ["lost rank 1: died (killed by signal 11)"]),
        ([(1, {"event": "vanished"})], ["lost rank 1: died"]),
        ([(0, FINISHED), (0, ended(-9))], []),
    ],
)  # fmt: skip
def test_the_last_lines(told: list[tuple[int, dict[str, Any]]], lines: list[str]) -> None:
    assert record(*told).lines() == lines


def test_every_loss_counts_once_whoever_tells_it() -> None:
    job = record(processes=5)
    steps = [
        ((0, LOST), 1),
        ((1, LOST), 1),
        ((2, ended(-9)), 1),
        ((1, ended(3)), 2),
        ((0, {**LOST, "process": 1, "window": 38}), 2),
        ((0, {"event": "joined", "process": 3, "slot": 1}), 2),
        ((0, {**LOST, "process": 3, "cause": "silent", "window": 40}), 3),
        ((3, {"event": "joined", "process": 3}), 3),
        ((0, {**LOST, "process": 3, "cause": "silent", "window": 50}), 4),
        ((0, {**LOST, "process": 3, "cause": "left", "window": 60}), 4),
        ((4, ended(1)), 4),
    ]
    for (sender, message), failures in steps:
        job.note(sender, message)
        assert job.num_failures == failures


def test_orders_go_to_the_guard_of_the_one_concerned() -> None:
    job = record(processes=5)
    assert job.note(0, {**LOST, "cause": "silent"}) == [(2, {"set_aside": True})]
    assert job.note(1, {**LOST, "cause": "silent"}) == []
    assert job.note(2, {"event": "joined", "process": 2}) == [(2, {"set_aside": False})]
    assert job.note(0, {"event": "evict", "process": 1}) == [(1, {"kill": True})]
    assert job.note(0, {"event": "slot_dead", "slot": 1}) == []
    assert job.note(0, {"event": "of tomorrow"}) == []
    assert job.note(0, {}) == []


def test_it_is_over_when_nobody_is_left_to_wait_for() -> None:
    job = record(processes=4)
    steps = [
        ((0, FINISHED), False),  # 1 may be busy after its training, and 2
        ((1, ended(1)), False),
        ((2, {"event": "frozen"}), True),
        ((2, {"event": "thawed"}), False),
        ((0, {**LOST, "cause": "silent"}), True),
        ((2, {"event": "joined", "process": 2}), False),
        ((2, ended(0)), True),
        ((0, {"event": "joined", "process": 3}), False),
        ((3, ended(0)), True),
    ]
    for (sender, message), over in steps:
        job.note(sender, message)
        assert job.is_over == over


def test_one_that_fails_does_not_end_it_for_one_that_is_frozen() -> None:
    job = record(ranks=2, processes=2)
    for sender, message, over in (
        (0, FAILED_ALONE, False),
        (0, ended(1), False),
        (1, {"event": "frozen"}, False),
        (1, {"event": "thawed"}, False),
        (1, FINISHED, True),
    ):
        job.note(sender, message)
        assert job.is_over == over


def test_it_is_stuck_when_some_have_ended_and_the_rest_are_stopped() -> None:
    job = record(processes=3)
    for sender, message, stuck in (
        (1, {"event": "frozen"}, False),
        (2, {"event": "frozen"}, False),
        (0, FAILED_ALONE, False),
        (0, ended(1), True),
        (1, {"event": "thawed"}, False),
        (2, {**LOST, "process": 1, "cause": "silent"}, True),
        (2, {"event": "joined", "process": 1}, False),
        (1, ended(-9), True),
        (2, FINISHED, False),  # that is over
    ):
        job.note(sender, message)
        assert job.is_stuck == stuck


def test_it_is_stuck_never_where_all_are_paused() -> None:
    assert not record(*((process, {"event": "frozen"}) for process in range(3))).is_stuck


def test_it_is_stillborn_when_one_fails_before_any_is_through_init() -> None:
    assert not record((0, ended(0))).is_stillborn
    assert record((0, ended(0)), (1, ended(-9))).is_stillborn
    assert not record((2, {"event": "listening"}), (1, ended(-9))).is_stillborn


def test_without_a_word_it_is_over_when_all_ranks_have_ended() -> None:
    job = record(processes=4)  # the last one sleeps, and would for ever
    for process, over in ((0, False), (1, False), (2, True)):
        job.note(process, ended(0))
        assert job.is_over == over


def test_ends_that_were_asked_for_are_no_losses() -> None:
    job = record((0, ended(1)))
    job.excuse()
    job.note(1, ended(-15))
    assert (job.num_failures, job.lines()) == (1, ["lost rank 0: died (exit code 1)"])


def test_where_one_failure_ends_all_only_the_first_is_told() -> None:
    job = record((1, ended(3)), (0, ended(-15)), (2, ended(-15)), outlives=False)
    assert job.lines() == ["lost rank 1: died (exit code 3)"]


@pytest.mark.parametrize(
    ("told", "outlives", "whole"),
    [
        ([(0, {"event": "vanished"}), (1, ended(-15)), (2, ended(-9))], True, True),
        ([(0, {"event": "vanished"}), (1, ended(1)), (2, ended(1))], True, True),
        ([(0, {"event": "vanished"}), (1, ended(1)), (2, ended(-15))], False, False),
        ([(0, ended(1)), (1, ended(2)), (2, ended(-11))], True, False),
        ([(0, FINISHED), (0, {"event": "vanished"}), (1, {"event": "vanished"})], True, False),
        ([(0, FAILED_ALONE), (0, ended(1)), (1, {"event": "vanished"}), (2, ended(-9))], True, True),
        ([(0, ended(0)), (1, {"event": "vanished"})], True, False),
        ([], True, False),
    ],
)
def test_starting_again_helps_where_a_rank_could_have_gone_on(
    told: list[tuple[int, dict[str, Any]]], outlives: bool, whole: bool
) -> None:
    assert record(*told, outlives=outlives).died_whole == whole
