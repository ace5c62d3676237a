"""Views and the decisions between them, worked out by hand."""

from __future__ import annotations

import dataclasses
import random

import pytest

from elche.errors import ConfigError, RankError
from elche.policy.membership import (
    Answer,
    Decision,
    Loss,
    Member,
    View,
    first_view,
    leave,
    roll_call,
    silence_limit,
)


def answers(*said, windows=7, reduced=False, started=3):
    """One answer for each process, or for each `Answer` as it is."""
    made = [one if isinstance(one, Answer) else Answer(one, windows, reduced, started, True) for one in said]
    return {answer.process: answer for answer in made}


# Views.


def test_the_first_view():
    view = first_view(3)
    assert (view.generation, view.windows, view.started, view.lost, view.entered) == (0, 0, 0, (), ())
    assert view.members == (Member(0, 0), Member(1, 1), Member(2, 2))
    assert view.processes == (0, 1, 2)
    assert view.reason == "3 members began"
    with pytest.raises(ConfigError, match="num_members is 0; it must be at least 1"):
        first_view(0)


def test_ranks_and_slots_of_processes():
    view = View(4, (Member(5, 1), Member(0, 3), Member(9, 4)))
    assert [view.rank_of(process) for process in (5, 0, 9, 1)] == [0, 1, 2, None]
    assert [view.slot_of(process) for process in (5, 0, 9, 1)] == [1, 3, 4, None]


@pytest.mark.parametrize("members", [(), ((1, 0), (2, 0)), ((1, 0), (1, 1)), ((1, 2), (2, 0))])
def test_a_view_without_members_or_with_two_of_a_kind_is_refused(members):
    with pytest.raises(ConfigError, match="view 2"):
        View(2, tuple(Member(*member) for member in members))


def test_a_view_is_the_same_from_its_text():
    view = View(
        5,
        (Member(7, 0), Member(2, 2), Member(30, 9)),
        windows=12,
        started=4,
        lost=(Loss(1, 1, "died"), Loss(3, 3, "silent"), Loss(4, 4, "left")),
        entered=(7, 30),
        reason="process 1 died — \N{GREEK SMALL LETTER ALPHA}",
    )
    assert View.from_text(view.to_text()) == view
    assert view.to_text().isascii()


@pytest.mark.parametrize("num_members", [512, 256, 17])
@pytest.mark.parametrize("seed", range(3))
def test_a_view_of_512_members_and_losses_in_any_slots_is_a_short_text(num_members, seed):
    dice = random.Random(seed)
    pairs = list(zip(dice.sample(range(4096), 512), sorted(dice.sample(range(1024), 512)), strict=True))
    stay = set(dice.sample(range(512), num_members))
    causes = {process: dice.choice(["died", "silent", "left"]) for process, _ in pairs}
    view = View(
        2**31,
        tuple(Member(*pair) for index, pair in enumerate(pairs) if index in stay),
        windows=2**40,
        started=10**6,
        lost=tuple(Loss(*pair, causes[pair[0]]) for index, pair in enumerate(pairs) if index not in stay),
        entered=tuple(sorted(process for process, _ in pairs if dice.random() < 0.2)),
        reason="x" * 60,
    )
    assert View.from_text(view.to_text()) == view
    assert len(view.to_text()) < 2900


def test_a_reason_stays_short_whatever_happens():
    everybody = {p: Answer(p, 0, False, 0, True) for p in range(512)}
    decision = roll_call(first_view(512), everybody, gone=range(300), silent=())
    assert decision.reason == "process 0, 1, 2, 3, 4 and 295 more died"
    assert len(decision.view.to_text()) < 2900


# Roll calls.


def test_a_member_that_died_leaves_the_view():
    decision = roll_call(first_view(4), answers(0, 1, 3), gone=[2], silent=[])
    assert decision.view == View(
        1,
        (Member(0, 0), Member(1, 1), Member(3, 3)),
        windows=7,
        started=3,
        lost=(Loss(2, 2, "died"),),
        reason="process 2 died",
    )
    assert (decision.waiting_for, decision.reason) == ((), "process 2 died")


def test_nothing_is_decided_while_an_answer_is_owed():
    view = first_view(4)
    assert roll_call(view, answers(0), [2], []) == Decision(None, (1, 3), "waiting for process 1, 3")
    assert roll_call(view, answers(0, 1), [2], []).waiting_for == (3,)
    assert roll_call(view, answers(0, 1), [2], [3]).view.processes == (0, 1)


def test_trouble_without_a_loss_gives_a_view_of_the_same_members():
    decision = roll_call(first_view(2), answers(0, 1), [], [])
    assert (decision.view.generation, decision.view.members) == (1, first_view(2).members)
    assert (decision.view.lost, decision.reason) == ((), "nobody was lost")


def test_who_died_after_its_answer_is_dead_and_who_answers_is_not_silent():
    ahead = Answer(0, 8, False, 1, True)
    decision = roll_call(first_view(3), answers(ahead, 1, 2), gone=[0], silent=[1])
    assert decision.view.processes == (1, 2)
    assert (decision.view.windows, decision.view.started) == (7, 3)
    assert decision.view.lost == (Loss(0, 0, "died"),)


def test_the_causes_of_losses():
    newcomer = Answer(3, 7, False, 0, entered=False)
    leaver = Answer(4, 7, False, 3, entered=True, left=True)
    decision = roll_call(first_view(8), answers(0, 5, 6, 7, newcomer, leaver), gone=[1], silent=[2])
    assert decision.view.processes == (0, 5, 6, 7)
    assert decision.view.lost == (
        Loss(1, 1, "died"),
        Loss(2, 2, "silent"),
        Loss(3, 3, "left"),
        Loss(4, 4, "left"),
    )
    assert decision.reason == "process 1 died, process 2 silent, process 3, 4 left"
    assert (decision.view.windows, decision.view.started) == (7, 3)  # a newcomer's 0 does not count


def test_slots_and_rank_order_are_kept():
    view = View(3, (Member(9, 0), Member(1, 2), Member(4, 5)))
    assert roll_call(view, answers(9, 4), [1], []).view.members == (Member(9, 0), Member(4, 5))


@pytest.mark.parametrize(
    ("windows_and_reduced", "windows"),
    [
        ([(7, False), (7, False), (7, False)], 7),
        ([(7, True), (7, False), (7, True)], 7),
        ([(7, True), (7, True), (7, True)], 8),  # the window under way counts, lost members' parts included
        ([(8, False), (7, True), (7, True)], 8),  # one has committed it already
        ([(8, True), (7, True), (8, False)], 8),
        ([(8, True), (7, True), (8, True)], 8),
    ],
)
def test_which_windows_count(windows_and_reduced, windows):
    said = [Answer(p, done, reduced, 3, True) for p, (done, reduced) in enumerate(windows_and_reduced)]
    decision = roll_call(first_view(4), answers(*said), gone=[3], silent=[])
    assert (decision.view.windows, decision.view.processes) == (windows, (0, 1, 2))


def test_a_newcomer_or_leaver_has_no_say_about_windows():
    newcomer, leaver = Answer(2, 9, False, 0, entered=False), Answer(3, 6, False, 0, entered=True, left=True)
    decision = roll_call(first_view(4), answers(0, 1, newcomer, leaver, reduced=True), [], [])
    assert (decision.view.windows, decision.view.processes) == (8, (0, 1))


def test_who_is_windows_behind_was_asleep_and_is_put_out():
    asleep = Answer(2, 5, False, 3, True)
    decision = roll_call(first_view(4), answers(0, 1, asleep, 3, reduced=True), [], [])
    assert decision.view.lost == (Loss(2, 2, "silent"),)
    assert (decision.view.processes, decision.view.windows) == ((0, 1, 3), 7)


def test_a_committed_window_whose_reduce_has_not_finished_is_a_bug():
    said = [Answer(0, 8, False, 3, True), Answer(1, 7, False, 3, True), Answer(2, 7, True, 3, True)]
    with pytest.raises(
        RankError, match="window 7 is committed, but its reduce has not finished on process 1: a"
    ):
        roll_call(first_view(3), answers(*said), [], [])


def test_start_up_steps_are_those_that_all_have_done():
    said = [Answer(0, 0, False, 4, True), Answer(1, 0, False, 2, True), Answer(2, 0, False, 1, True)]
    assert roll_call(first_view(3), answers(*said), gone=[2], silent=[]).view.started == 2


def test_fewer_than_half_go_on_only_where_the_rest_is_gone_or_has_left():
    view = first_view(5)
    decision = roll_call(view, answers(0, 1), gone=[2], silent=[3, 4])
    assert (decision.view, decision.waiting_for) == (None, (3, 4))
    assert decision.reason == "2 of 5 members are too few while others are only silent: process 3, 4"
    assert roll_call(view, answers(0, 1), gone=[2, 3], silent=[4]).waiting_for == (4,)
    assert roll_call(view, answers(0, 1), gone=[2, 3, 4], silent=[]).view.processes == (0, 1)
    leaver = Answer(4, 7, False, 3, entered=True, left=True)
    assert roll_call(view, answers(0, 1, leaver), gone=[2, 3], silent=[]).view.processes == (0, 1)
    assert roll_call(view, answers(0, 1, 2), gone=[], silent=[3, 4]).view.processes == (0, 1, 2)


def test_a_newcomer_without_the_state_is_not_counted_where_another_is_silent():
    """Its donor is stopped: the one other old member is half of those that could go on."""
    newcomer = Answer(2, 0, False, 0, entered=False)
    assert roll_call(first_view(3), answers(0, newcomer), gone=[], silent=[1]).view.processes == (0,)
    assert roll_call(first_view(4), answers(0, newcomer), gone=[], silent=[1, 3]).view is None
    assert roll_call(first_view(4), answers(0, 3), gone=[], silent=[1, 2]).view.processes == (0, 3)


def test_the_last_member_goes_on_alone():
    assert roll_call(first_view(8), answers(5), gone={0, 1, 2, 3, 4, 6, 7}, silent=()).view.processes == (5,)


def test_without_a_member_that_holds_the_state_there_is_no_view():
    newcomer = Answer(1, 0, False, 0, entered=False)
    decision = roll_call(first_view(3), answers(newcomer), gone=[0], silent=[2])
    assert decision == Decision(None, (2,), "no member that holds the job's state has answered")
    assert roll_call(first_view(2), {}, gone=[0, 1], silent=[]).view is None


# Who leaves.


def test_leaving():
    view = dataclasses.replace(first_view(4), started=3)
    assert leave(view, [1, 3, 9], windows=6) == View(
        1,
        (Member(0, 0), Member(2, 2)),
        windows=6,
        started=3,
        lost=(Loss(1, 1, "left"), Loss(3, 3, "left")),
        reason="process 1, 3 left",
    )
    with pytest.raises(ConfigError, match="view 1"):
        leave(view, range(4), windows=6)


# Silence.


@pytest.mark.parametrize(
    ("recent", "stall", "limit"),
    [
        (None, None, 600.0),
        (None, 3.0, 3.0),
        (0.0, None, 10.0),
        (0.01, None, 10.0),
        (0.5, None, 10.0),
        (0.75, None, 15.0),
        (30.0, None, 600.0),
        (31.0, None, 600.0),
        (31.0, 2.0, 2.0),
        (0.01, 900.0, 900.0),
    ],
)
def test_the_limit_of_silence_follows_the_batch_time(recent, stall, limit):
    assert silence_limit(recent, stall_seconds=stall, long_seconds=600.0) == limit
