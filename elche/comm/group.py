"""The ranks of a job, from one membership change to the next.

Who is in the next view is decided in `policy/membership.py`. This file waits for others with the signs of
life in sight, makes the communicators, and lets the roll be called.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from elche.comm.base import DEADLINE_SECONDS, Comm, Rendezvous
from elche.comm.door import Entry, knock
from elche.comm.roll import call_roll
from elche.comm.signs import Signs
from elche.comm.view_chain import ViewChain
from elche.errors import CommError, SilenceError
from elche.policy.membership import Answer, Kind, View

NAP_SECONDS = 0.5e-3
CONNECT_SECONDS = 10.0
DISMISSAL_SECONDS = 2.0


class Group(ViewChain):
    """This process among the others.

    Attributes:
        comm: the communicator of the newest view; None while there is none, or this process is outside.
        signs: what it says by them, and what it makes of the others'.
        entered: whether its state is the job's.
        on_connect: is told of each new communicator of all members.
    """

    comm: Comm | None
    signs: Signs
    entered: bool
    on_connect: Callable[[Comm], None]

    def __init__(
        self,
        rendezvous: Rendezvous,
        num_members: int,
        *,
        num_seats: int = 0,
        stall_seconds: float | None = None,
    ) -> None:
        """Begin with the first processes as members; nobody is waited for yet.

        Args:
            rendezvous: how processes find each other.
            num_members: how many are members at first; the others are outside.
            num_seats: how many of those sleep, the last ones.
            stall_seconds: the silence deadline; None: it follows the measured batches.
        """
        super().__init__(rendezvous, num_members)
        self.comm, self.entered = None, self.inside
        self.on_connect = lambda _: None
        self._first_seat = rendezvous.num_processes - num_seats
        self._steps: list[Callable[[Comm], object]] = []
        self._declined = -1
        self.signs = Signs(self.pulse, self.process, stall_seconds)
        self.pulse.start()

    @property
    def num_started(self) -> int:
        """Start-up steps that are done here, or were before this process entered."""
        return len(self._steps)

    @property
    def is_seat(self) -> bool:
        """Whether this process slept until it was woken."""
        return self.process >= self._first_seat

    # Waiting for others.

    def watch(self) -> None:
        """Raise where waiting for the members of this view makes no sense any more.

        Raises:
            CommError: one is gone, or calls the roll.
            SilenceError: one has made no progress for longer than its own limit.
        """
        self.pulse.listen()
        if gone := self.others() & self._rendezvous.gone():
            raise CommError(f"processes {sorted(gone)} are gone")
        if callers := self.answers().keys() - {self.process}:
            raise CommError(f"processes {sorted(callers)} call the roll")
        if silent := self.signs.silent(self.view):
            raise SilenceError(f"processes {sorted(silent)} have made no progress for too long")

    def connect(self) -> Comm:
        """Make the communicator of this view; all members call it.

        Returns:
            The communicator.

        Raises:
            CommError: a member is gone, silent, or did not come.
        """
        self.comm = self.connect_some(self.view.processes, "all")
        self.on_connect(self.comm)
        return self.comm

    def connect_some(self, processes: Sequence[int], name: str) -> Comm:
        """Make a communicator of some members of this view.

        Args:
            processes: who; all of them call it.
            name: of this communicator, once in a view.

        Returns:
            The communicator.
        """
        comm = self._rendezvous.connect(
            processes,
            f"view-{self.view.generation}-{name}",
            deadline_seconds=CONNECT_SECONDS if self.view.generation else DEADLINE_SECONDS,
            watch=self.watch,
        )
        comm.watch, comm.deadline_seconds = self.watch, DEADLINE_SECONDS
        return comm

    def start_up(self, step: Callable[[Comm], Any]) -> Any:
        """Do a step that all ranks do before training; where one is lost meanwhile, again with the rest.

        Args:
            step: what to do with the communicator; may be done several times.

        Returns:
            What `step` returned.

        Raises:
            SilenceError: the others have gone on without this rank.
        """
        while True:
            try:
                result = step(self.comm or self.connect())
            except CommError:
                self.heal(lambda: (0, False), lambda _: None)
                if not self.inside:
                    raise SilenceError("the others began without this rank, which was silent") from None
            else:
                self._steps.append(step)
                return result

    def heal(self, standing: Callable[[], tuple[int, bool]], follow: Callable[[View], None]) -> None:
        """Find the next view after trouble in this one, and connect its members; again where that fails.

        Args:
            standing: returns how many windows are committed here, and whether the one under way was reduced.
            follow: takes over what a view says; this process may be outside of it.
        """
        while True:
            windows, reduced = standing()
            follow(self.decide(windows, reduced=reduced))
            if not self.inside:
                return
            with suppress(CommError):
                self.rejoin()
                return

    def rejoin(self) -> Comm:
        """Connect the view's members, and repeat the start-up steps that not all of them have done.

        Returns:
            The communicator.
        """
        comm = self.connect()
        for step in self._steps[self.view.started :]:
            step(comm)
        return comm

    # Deciding.

    def decide(self, windows: int, *, reduced: bool) -> View:
        """Call the roll of this view and settle the next one, see `roll.py`.

        Args:
            windows: windows committed here.
            reduced: whether the window under way was reduced here.

        Returns:
            The next view, which this process may be outside of.
        """
        answer = Answer(self.process, windows, reduced, self.num_started, self.entered)
        self.signs.at_roll_call()
        if self.comm is not None:
            self.comm.revoke()
        return call_roll(self, self._rendezvous, answer)

    def wake(self, num_ranks: int) -> None:
        """Wake so many sleeping seats, the first ones; any that are awake take no notice."""
        asleep = [process for process in self.outsiders() if process >= self._first_seat]
        for process in asleep[:num_ranks]:
            self.pulse.tell(process, ["wake"])

    # From outside.

    def knock(self, kind: Kind, slot: int, epoch: int) -> Entry:
        """Ask the members to be let in, until they do, or it makes no sense; see `door.py`."""
        self.entered, self.comm, self.pulse.epoch = False, None, -1
        self.signs.at_door()
        return knock(self, self._rendezvous, kind, slot, epoch)

    def decline(self) -> None:
        """Answer the roll of a view that lets this process in, where its way in has failed: without it."""
        if self.comm is not None:
            self.comm.revoke()
        self._declined = self.view.generation
        self.pulse.answer(self.view.generation, Answer(self.process, 0, False, 0, entered=False))

    @property
    def let_in(self) -> bool:
        """Whether the newest view lets this process in, and it has not declined."""
        return self.inside and self.view.generation != self._declined

    def enter(self) -> None:
        """Note that this process has the job's state now, and with it what the start-up steps came to."""
        self._steps = [lambda _: None] * self.view.started
        self.entered, self._lost = True, []

    def await_dismissal(self) -> None:
        """Wait, not for long, until the others go on without this process: gone now, it would have died."""
        self.signs.at_rest("leaving")
        end = self.pulse.clock.now() + DISMISSAL_SECONDS
        while self.inside and not self.is_last() and self.pulse.clock.now() < end:
            self.follow()
            time.sleep(NAP_SECONDS)

    def end(self, reason: str) -> None:
        """Let those outside know that the job has ended."""
        with suppress(CommError):
            self._rendezvous.propose("end", reason)

    def has_ended(self) -> bool:
        """Return whether a member has said that the job has ended."""
        return self._rendezvous.look_up("end") is not None

    def close(self) -> None:
        """Send no more signs of life."""
        self.pulse.stop()

    def _adopt(self, view: View) -> View:
        self.comm = None
        return super()._adopt(view)
