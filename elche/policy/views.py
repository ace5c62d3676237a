"""What a view is: who the members are, and what they share when it begins.

A process has a lasting number in the job and, while it is a member, a slot of the controller.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

from elche.errors import ConfigError
from elche.policy.checks import at_least

NAMED = 5  # processes that a reason names, so that a view stays short

Cause = Literal["died", "silent", "left"]


class Member(NamedTuple):
    """A process and the slot that it holds."""

    process: int
    slot: int


class Loss(NamedTuple):
    """A member of the view before that is none any more, and why."""

    process: int
    slot: int
    cause: Cause


@dataclass(frozen=True)
class View:
    """A generation: who its members are, and what they share when it begins.

    Attributes:
        generation: its number, from 0.
        members: in rank order, which is that of their slots.
        windows: windows that count as committed.
        started: start-up steps that every member has done.
        lost: who was in the view before and is not in this one.
        entered: processes that were not in the view before.
        reason: why the view came to be, for a human.
    """

    generation: int
    members: tuple[Member, ...]
    windows: int = 0
    started: int = 0
    lost: tuple[Loss, ...] = ()
    entered: tuple[int, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        ordered = all(one.slot < other.slot for one, other in pairwise(self.members))
        if not self.members or not ordered or len(set(self.processes)) < len(self.members):
            raise ConfigError(f"view {self.generation}: {self.members} are not processes by slot, each once")

    @cached_property
    def processes(self) -> tuple[int, ...]:
        """The members' processes, in rank order."""
        return tuple(member.process for member in self.members)

    def rank_of(self, process: int) -> int | None:
        """Return the rank of a process; None where it is no member."""
        return self.processes.index(process) if process in self.processes else None

    def slot_of(self, process: int) -> int | None:
        """Return the slot of a process; None where it is no member."""
        return dict(self.members).get(process)

    def to_text(self) -> str:
        """Return the view as a short text: deflated JSON in base64.

        It stays below 2,900 characters for 512 members, or members and losses, in whatever slots below
        1,024, with process numbers below 4,096.
        """
        lost = [[loss.process for loss in self.lost], _gaps(self.lost), [loss.cause for loss in self.lost]]
        columns = [self.processes, _gaps(self.members), lost, self.entered]
        numbers = [self.generation, self.windows, self.started]
        plain = json.dumps([*numbers, *columns, self.reason], separators=(",", ":"))
        return base64.b64encode(zlib.compress(plain.encode(), 9)).decode()

    @classmethod
    def from_text(cls, text: str) -> View:
        """Return the view whose `to_text` this is."""
        plain = json.loads(zlib.decompress(base64.b64decode(text)))
        generation, windows, started, processes, gaps, lost, entered, reason = plain
        members = tuple(map(Member, processes, accumulate(gaps)))
        losses = tuple(map(Loss, lost[0], accumulate(lost[1]), lost[2]))
        return cls(generation, members, windows, started, losses, tuple(entered), reason)


def first_view(num_members: int) -> View:
    """Return generation 0: process p in slot p."""
    at_least("num_members", num_members, 1)
    return View(0, tuple(Member(p, p) for p in range(num_members)), reason=f"{num_members} members began")


def successor(
    view: View,
    members: Iterable[Member],
    *,
    windows: int,
    started: int | None = None,
    lost: Sequence[Loss] = (),
    entered: Sequence[int] = (),
) -> View:
    """Return the view that follows, with a reason made of who was lost and who entered.

    Args:
        view: the present view.
        members: of the next one, in any order.
        windows: windows committed by now.
        started: start-up steps that all have done; None: as before.
        lost: who is not among the members any more.
        entered: whose processes are new.

    Returns:
        The next view.
    """
    ordered = tuple(sorted(members, key=lambda member: member.slot))
    by_cause: dict[str, list[int]] = {}
    for loss in lost:
        by_cause.setdefault(loss.cause, []).append(loss.process)
    parts = [f"{named(processes)} {cause}" for cause, processes in by_cause.items()]
    parts += [f"{named(entered)} entered"] if entered else []
    reason = ", ".join(parts) or "nobody was lost"
    started = view.started if started is None else started
    return View(view.generation + 1, ordered, windows, started, tuple(lost), tuple(entered), reason)


def named(processes: Sequence[int]) -> str:
    """Return a few of these processes in words, and how many there are."""
    more = f" and {len(processes) - NAMED} more" if len(processes) > NAMED else ""
    return f"process {', '.join(map(str, processes[:NAMED]))}{more}"


def _gaps(holders: Sequence[Member | Loss]) -> list[int]:
    """Return how far each slot lies from the one before: small numbers, which deflate well."""
    slots = [holder.slot for holder in holders]
    return [slot - before for before, slot in zip([0, *slots], slots, strict=False)]
