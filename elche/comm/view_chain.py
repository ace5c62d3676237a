"""The views of a job as this process knows them: one after the other, each settled once for all.

A view is settled by the first write in the register; who proposes another one learns which one stands.
"""

from __future__ import annotations

from typing import NamedTuple

from elche.comm.base import Rendezvous
from elche.comm.pulse import Pulse
from elche.policy.membership import Answer, Loss, View, first_view


class Lost(NamedTuple):
    """Who was lost, the rank it had, and how long ago its last sign of life was then; 0.0 for none at all."""

    loss: Loss
    rank: int
    detect_ms: float


class ViewChain:
    """Follows the views, and knows who is in the newest.

    Attributes:
        process: this process's lasting number.
        num_first: how many members there were at first.
        view: the newest it knows.
        pulse: its signs of life.
    """

    process: int
    num_first: int
    view: View
    pulse: Pulse

    def __init__(self, rendezvous: Rendezvous, num_members: int) -> None:
        """Begin with the first processes as members.

        Args:
            rendezvous: how processes find each other.
            num_members: how many are members at first; the others are outside.
        """
        self._rendezvous, self.num_first = rendezvous, num_members
        self.process, self.view = rendezvous.process, first_view(num_members)
        self.pulse = Pulse(rendezvous, frozenset(self.view.processes))
        self._lost: list[Lost] = []
        self._leaving: dict[int, Answer] = {}

    @property
    def inside(self) -> bool:
        """Whether this process is a member of the newest view it knows."""
        return self.view.rank_of(self.process) is not None

    @property
    def slot(self) -> int:
        """The slot this process holds; -1 for none."""
        slot = self.view.slot_of(self.process)
        return -1 if slot is None else slot

    def others(self) -> set[int]:
        """Return the other members."""
        return set(self.view.processes) - {self.process}

    def is_last(self) -> bool:
        """Return whether no other member lives."""
        return self.others() <= self._rendezvous.gone()

    def fails_last(self) -> bool:
        """Note that this process's script has failed; return whether no other member is left that has not."""
        self._rendezvous.propose(f"failed-{self.process}", "")
        living = self.others() - self._rendezvous.gone()
        return all(self._rendezvous.look_up(f"failed-{process}") is not None for process in living)

    def outsiders(self) -> list[int]:
        """Return the processes that live outside of the view."""
        gone = self._rendezvous.gone() | set(self.view.processes)
        return [process for process in range(self._rendezvous.num_processes) if process not in gone]

    def is_passed_over(self) -> bool:
        """Return whether the others have settled a view without this process; it was stopped meanwhile."""
        if not self.answers():
            return False
        view = self._next()
        return view is not None and view.rank_of(self.process) is None

    def answers(self) -> dict[int, Answer]:
        """Return the answers to the roll of this view that were heard, and farewells."""
        return {**self.pulse.answers.get(self.view.generation, {}), **self._leaving}

    def note_leaving(self, processes: list[int]) -> None:
        """Note that these said farewell: they will not answer."""
        for process in processes:
            self._leaving[process] = Answer(process, 0, False, 0, True, True)

    def take_lost(self) -> list[Lost]:
        """Return who was lost since the last call, in this order."""
        lost, self._lost = self._lost, []
        return lost

    def settle(self, proposal: View) -> View:
        """Propose the next view; the first proposal counts, whoever made it.

        Args:
            proposal: of the next generation.

        Returns:
            The view that was settled.
        """
        text = self._rendezvous.propose(f"view-{proposal.generation}", proposal.to_text())
        return self._adopt(View.from_text(text))

    def go_on(self) -> bool:
        """Go on to the next view; return whether it is settled."""
        view = self._next()
        if view is not None:
            self._adopt(view)
        return view is not None

    def follow(self) -> None:
        """Go on to the newest view that is settled."""
        while self.go_on():
            pass

    def _next(self) -> View | None:
        text = self._rendezvous.look_up(f"view-{self.view.generation + 1}")
        return None if text is None else View.from_text(text)

    def _adopt(self, view: View) -> View:
        for loss in view.lost:
            self._lost.append(
                Lost(loss, self.view.processes.index(loss.process), self._silent_ms(loss.process))
            )
        self.view = view
        self.pulse.others, self.pulse.generation = frozenset(view.processes), view.generation
        self.pulse.answers.pop(view.generation - 2, None)
        for process in view.entered:
            self.pulse.note_admitted(process, view.generation)
        self._leaving = {}
        return view

    def _silent_ms(self, process: int) -> float:
        beat = self.pulse.beats.get(process)
        return 0.0 if beat is None else 1e3 * (self.pulse.clock.now() - beat.heard)
