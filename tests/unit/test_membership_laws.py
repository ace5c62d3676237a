"""The laws of membership, for any answers, losses and entries."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from elche.errors import RankError
from elche.policy.membership import (
    Answer,
    Knock,
    Loss,
    Member,
    SlotState,
    View,
    admit,
    first_view,
    leave,
    roll_call,
)

PROCESSES = st.integers(0, 11)
KINDS = st.sampled_from(["returning", "spare", "seat", "added"])


@st.composite
def views(draw):
    processes = draw(st.lists(PROCESSES, min_size=1, max_size=8, unique=True))
    slots = draw(st.lists(st.integers(0, 15), min_size=len(processes), max_size=len(processes), unique=True))
    return View(draw(st.integers(0, 99)), tuple(map(Member, processes, sorted(slots))), started=5)


@st.composite
def roll_calls(draw, windows=(6, 7, 7, 8, 8, 8)):
    """A view, and what one rank has heard of its members and others."""
    heard = {
        process: Answer(
            process,
            windows=draw(st.sampled_from(windows)),
            reduced=draw(st.booleans()),
            started=draw(st.integers(0, 3)),
            entered=draw(st.integers(0, 5)) > 0,
            left=draw(st.integers(0, 5)) == 0,
        )
        for process in draw(st.sets(PROCESSES))
    }
    return draw(views()), heard, draw(st.sets(PROCESSES, max_size=5)), draw(st.sets(PROCESSES, max_size=5))


def is_bug(view, answers, gone):
    """Whether a member that goes on lacks the reduce of a window that another one has committed."""
    staying = [
        answers[process]
        for process in view.processes
        if process in answers
        and process not in gone
        and answers[process].entered
        and not answers[process].left
    ]
    newest = max((answer.windows for answer in staying), default=0)
    return any(answer.windows == newest - 1 and not answer.reduced for answer in staying)


@settings(max_examples=400)
@given(roll_calls())
def test_a_roll_call_always_comes_to_a_decision(call):
    view, answers, gone, silent = call
    try:
        decision = roll_call(view, answers, gone, silent)
    except RankError:
        assert is_bug(view, answers, gone)
        return
    if decision.view is None:
        assert decision.reason
        owing = {p for p in view.processes if p not in answers and p not in gone}
        assert set(decision.waiting_for) <= owing
        assert decision.waiting_for or all(
            p in gone or not answers[p].entered or answers[p].left for p in view.processes
        )
        return
    new = decision.view
    assert decision.waiting_for == ()
    assert new.generation == view.generation + 1
    assert set(new.members) < set(view.members) or new.members == view.members
    assert [loss.slot for loss in new.lost] == [
        member.slot for member in view.members if member not in new.members
    ]
    for loss in new.lost:
        assert (loss.cause == "died") == (loss.process in gone)
        if loss.process not in answers and loss.process not in gone:
            assert (loss.cause, loss.process in silent) == ("silent", True)
    staying = [answers[process] for process in new.processes]
    newest = max(answer.windows for answer in staying)
    assert new.windows in (newest, newest + 1)
    assert new.windows == newest or all(answer.reduced for answer in staying)
    for answer in staying:  # each has done, or can do, the windows that count
        assert answer.windows == new.windows or (answer.windows == new.windows - 1 and answer.reduced)
    assert new.started == min(answer.started for answer in staying)


@given(roll_calls(windows=(7, 8, 8)), st.randoms(use_true_random=False))
def test_whoever_heard_the_same_decides_the_same(call, dice):
    view, answers, gone, silent = call
    if is_bug(view, answers, gone):
        return
    shuffled = list(answers.items())
    dice.shuffle(shuffled)
    other = View.from_text(view.to_text())
    decided = roll_call(other, dict(shuffled), sorted(gone, reverse=True), tuple(silent))
    assert decided == roll_call(view, answers, gone, silent)
    if decided.view is not None:
        assert decided.view.to_text() == roll_call(view, answers, gone, silent).view.to_text()


@settings(max_examples=300)
@given(roll_calls(windows=(7,)))
def test_fewer_than_half_go_on_only_with_the_systems_word(call):
    view, answers, gone, silent = call
    new = roll_call(view, answers, gone, silent).view
    stateless = [p for p in view.processes if p in answers and p not in gone and not answers[p].entered]
    if new is not None and 2 * len(new.members) < len(view.members) - len(stateless):
        assert all(process in gone or process in answers for process in view.processes)


@given(
    views(),
    st.lists(st.builds(Loss, PROCESSES, st.integers(0, 99), st.sampled_from(["died", "silent", "left"]))),
    st.text(),
)
def test_a_view_is_the_same_from_its_text(view, lost, reason):
    lost = tuple(sorted(lost, key=lambda loss: loss.slot))
    full = View(view.generation, view.members, 3, 2, lost, view.processes[:2], reason)
    assert View.from_text(full.to_text()) == full


class Job:
    """Views in a chain, with its own account of whose slots are whose."""

    def __init__(self, data, first_size, max_ranks):
        self.draw, self.max_ranks, self.wanted = data.draw, max_ranks, first_size
        self.view = first_view(first_size)
        unused = max_ranks - first_size
        self.slots = [SlotState.LIVING] * first_size + [SlotState.UNUSED] * unused
        self.former = {}  # of those that were set aside or are gone

    def some(self, values, name):
        return self.draw(st.sets(st.sampled_from(sorted(values)), max_size=3), name) if values else set()

    def follow(self, view):
        """Take over a view as the schedule would."""
        for loss in view.lost:
            silent = loss.cause == "silent"
            self.slots[loss.slot] = SlotState.RESERVED if silent else SlotState.VACANT
            self.former[loss.process] = loss.slot
        for process in view.entered:
            self.slots[view.slot_of(process)] = SlotState.LIVING
        assert view.generation == self.view.generation + 1
        assert len(set(view.processes)) == len({member.slot for member in view.members}) == len(view.members)
        assert [slot for slot, state in enumerate(self.slots) if state is SlotState.LIVING] == [
            member.slot for member in view.members
        ]
        self.view = view

    def trouble(self):
        gone = self.some(self.view.processes, "gone")
        silent = self.some(set(self.view.processes) - gone, "silent")
        answers = {
            process: Answer(process, self.view.windows, self.draw(st.booleans()), 1, True)
            for process in self.view.processes
            if process not in gone | silent
        }
        new = roll_call(self.view, answers, gone, silent).view
        if new is not None:
            self.follow(new)

    def leaving(self):
        leaving = self.some(self.view.processes[1:], "leaving")
        self.follow(leave(self.view, leaving, self.view.windows + 1))

    def knocks(self):
        knocks = [
            Knock(process, self.draw(KINDS, "kind"), self.former.get(process, -1))
            for process in self.some(range(12), "knocking")
        ]
        before, slots = self.view, list(self.slots)
        reserved = {slot for slot, state in enumerate(slots) if state is SlotState.RESERVED}
        told = {"slots": slots, "max_ranks": self.max_ranks, "wanted": self.wanted, "windows": 7}
        new = admit(before, knocks, **told)
        assert admit(before, random.Random(1).sample(knocks, len(knocks)), **told) == new
        if new is None:
            return
        self.follow(new)
        assert set(before.members) < set(new.members)
        assert len(new.members) <= min(self.wanted, self.max_ranks)
        by_process = {knock.process: knock for knock in knocks}
        for process in new.entered:
            if new.slot_of(process) in reserved:
                knock = by_process[process]
                assert (knock.kind, knock.slot) == ("returning", new.slot_of(process))
            assert slots[new.slot_of(process)] is not SlotState.LIVING

    def expire(self):
        """Let the trust windows of those that were set aside pass."""
        self.slots = [SlotState.VACANT if state is SlotState.RESERVED else state for state in self.slots]

    def grow(self):
        self.wanted = self.draw(st.integers(1, 9), "wanted")


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 6), st.integers(0, 3))
def test_no_chain_of_losses_and_entries_puts_two_into_a_slot(data, first_size, more):
    job = Job(data, first_size, first_size + more)
    events = st.sampled_from([job.trouble, job.leaving, job.knocks, job.knocks, job.expire, job.grow])
    for _ in range(15):
        data.draw(events, "event")()
