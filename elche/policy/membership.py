"""Who is a member: the decisions that lead from one view to the next.

Whoever knows the same decides the same, so nobody has to lead; that one decision counts where two know
different things is the register's business.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Literal, NamedTuple

from elche.errors import ConfigError, RankError
from elche.policy.views import Cause, Loss, Member, View, first_view, named, successor

__all__ = [
    "Answer",
    "Decision",
    "Knock",
    "Loss",
    "Member",
    "SlotState",
    "View",
    "admit",
    "first_view",
    "leave",
    "roll_call",
    "silence_limit",
]

MULTIPLE = 20  # ten times slower for a while is slow, not silent: twice that
FLOOR_SECONDS = 10.0  # shorter pauses are a collected heap, a swap, a slow file system

Kind = Literal["returning", "spare", "seat", "added"]
KINDS: tuple[Kind, ...] = ("returning", "spare", "seat", "added")  # who may enter first


class SlotState(Enum):
    """What a slot of the controller is to those who would take it."""

    LIVING = "living"  # a member holds it
    RESERVED = "reserved"  # its process was set aside; no other may take it
    VACANT = "vacant"  # its process died, left, or has been away for a trust window
    UNUSED = "unused"  # nobody has ever held it: growth


class Answer(NamedTuple):
    """What a member says in a roll call.

    Attributes:
        process: who says it.
        windows: windows it has committed.
        reduced: whether its reduce of the window under way finished and it went on to agree.
        started: start-up steps it has done.
        entered: False for a newcomer whose state is not verified yet.
        left: whether it answers only to say that it goes.
    """

    process: int
    windows: int
    reduced: bool
    started: int
    entered: bool
    left: bool = False


class Knock(NamedTuple):
    """What a process outside the view says to get in; `slot` is the one it held before, -1 for none."""

    process: int
    kind: Kind
    slot: int


class Decision(NamedTuple):
    """What a roll call came to.

    Attributes:
        view: the next view; None while there is none to be had.
        waiting_for: the processes whose answer, or end, would change that.
        reason: why, for a human.
    """

    view: View | None
    waiting_for: tuple[int, ...]
    reason: str


def roll_call(
    view: View, answers: Mapping[int, Answer], gone: Collection[int], silent: Collection[int]
) -> Decision:
    """Decide who goes on after trouble, and what counts as committed.

    Members go on that hold the job's state and stay. A window counts where one of them has committed it, or
    where the reduce of the window under way finished on all of them; what lost members gave to it counts too.

    Args:
        view: the present view.
        answers: by process, what it said. That of one that is gone since does not count.
        gone: processes that have ended, by the system's word.
        silent: processes that are believed to hang, by a deadline; one that answers is not.

    Returns:
        The next view; or None and whom to wait for, while members owe an answer, or when fewer than half
        would go on on nothing but a deadline's word, or when no member that answers holds the job's state.

    Raises:
        RankError: a member committed a window whose reduce another that goes on has not finished: a bug.
    """
    heard = {p: answers[p] for p in view.processes if p in answers and p not in gone}
    unheard = tuple(p for p in view.processes if p not in heard and p not in gone)
    if waiting_for := tuple(p for p in unheard if p not in silent):
        return Decision(None, waiting_for, f"waiting for {named(waiting_for)}")
    staying = {p: answer for p, answer in heard.items() if answer.entered and not answer.left}
    if not staying:
        return Decision(None, unheard, "no member that holds the job's state has answered")
    newest = max(answer.windows for answer in staying.values())
    present = {p: answer for p, answer in staying.items() if answer.windows >= newest - 1}
    holders = len(view.members) - sum(not answer.entered for answer in heard.values())
    if unheard and 2 * len(present) < holders:  # a newcomer without the state could not go on either
        reason = f"{len(present)} of {holders} members are too few while others are only silent"
        return Decision(None, unheard, f"{reason}: {named(unheard)}")
    causes = {p: _cause(heard.get(p), p in gone) for p in view.processes if p not in present}
    next_view = successor(
        view,
        [member for member in view.members if member.process in present],
        windows=_committed(staying, newest),
        started=min(answer.started for answer in present.values()),
        lost=[Loss(*member, causes[member.process]) for member in view.members if member.process in causes],
    )
    return Decision(next_view, (), next_view.reason)


def _committed(staying: Mapping[int, Answer], newest: int) -> int:
    """Return how many windows count: those of whoever is ahead, or one more that all have reduced."""
    if all(answer.windows == newest for answer in staying.values()):
        return newest + all(answer.reduced for answer in staying.values())
    torn = [p for p, answer in staying.items() if answer.windows == newest - 1 and not answer.reduced]
    if torn:
        raise RankError(
            f"window {newest - 1} is committed, but its reduce has not finished on {named(torn)}: a bug"
        )
    return newest


def _cause(answer: Answer | None, gone: bool) -> Cause:
    """Return why a member is lost; one that is windows behind was asleep, and may come back."""
    if gone:
        return "died"
    return "silent" if answer is None or (answer.entered and not answer.left) else "left"


def admit(
    view: View,
    knocks: Sequence[Knock],
    *,
    slots: Sequence[SlotState],
    max_ranks: int,
    wanted: int,
    windows: int,
) -> View | None:
    """Decide who enters at a window boundary.

    A process that returns takes its former slot where nobody holds it. All others, and it too, take the
    lowest vacant slot, or where none is vacant the lowest unused one. Reserved slots count as members to
    come, so nobody else takes the place of a process that is set aside until its trust window has passed.

    Args:
        view: the present view.
        knocks: who wants to enter; one that is a member already is passed over.
        slots: by slot its state. One that a member holds is not free, whatever stands here.
        max_ranks: the most members there may be.
        wanted: how many members the job wants now.
        windows: windows committed by now.

    Returns:
        The next view; None when nobody enters.

    Raises:
        ConfigError: a knock is of no known kind.
    """
    if strange := [knock.kind for knock in knocks if knock.kind not in KINDS]:
        raise ConfigError(f"knocks: the kind {strange[0]!r} is not one of {', '.join(KINDS)}")
    members = {member.process: member.slot for member in view.members}
    held = set(members.values())
    states = [SlotState.LIVING if slot in held else state for slot, state in enumerate(slots)]
    for knock in sorted(knocks, key=lambda knock: (KINDS.index(knock.kind), knock.process, knock.slot)):
        slot = _slot_for(knock, states)
        if slot is None or knock.process in members:
            continue
        to_come = 0 if states[slot] is SlotState.RESERVED else states.count(SlotState.RESERVED)
        if len(members) + to_come < min(wanted, max_ranks):
            members[knock.process], states[slot] = slot, SlotState.LIVING
    entered = sorted(members.keys() - set(view.processes))
    if not entered:
        return None
    return successor(view, map(Member, members.keys(), members.values()), windows=windows, entered=entered)


def _slot_for(knock: Knock, states: Sequence[SlotState]) -> int | None:
    had_one = knock.kind == "returning" and 0 <= knock.slot < len(states)
    if had_one and states[knock.slot] in (SlotState.RESERVED, SlotState.VACANT):
        return knock.slot
    for state in (SlotState.VACANT, SlotState.UNUSED):
        if state in states:
            return states.index(state)
    return None


def leave(view: View, leaving: Collection[int], windows: int) -> View:
    """Return the next view, without the processes that asked to go.

    Args:
        view: the present view.
        leaving: who goes; somebody must stay.
        windows: windows committed by now.

    Returns:
        The next view.
    """
    lost = [Loss(*member, "left") for member in view.members if member.process in leaving]
    staying = [member for member in view.members if member.process not in leaving]
    return successor(view, staying, windows=windows, lost=lost)


def silence_limit(
    recent_batch_seconds: float | None, *, stall_seconds: float | None, long_seconds: float
) -> float:
    """Return after how many seconds without a finished batch a process counts as silent.

        min(max(10, 20 * recent), long)

    Args:
        recent_batch_seconds: how long its batches took lately; None while nothing is measured.
        stall_seconds: the limit itself, where the user gave one.
        long_seconds: the limit of what is long and no fault: first batches, compilation.

    Returns:
        The limit.
    """
    if stall_seconds is not None:
        return stall_seconds
    if recent_batch_seconds is None:
        return long_seconds
    return min(max(FLOOR_SECONDS, MULTIPLE * recent_batch_seconds), long_seconds)
