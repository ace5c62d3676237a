"""What the engine does when ranks are lost, leave, are set aside or enter.

One path for every trouble: the group finds the next view, `_follow` takes over what it says, the window is
reduced again among its members. Whoever enters does so between two windows, with the others' state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from elche.comm.view_chain import Lost
from elche.errors import CommError
from elche.policy.dispatch import Range
from elche.policy.membership import View
from elche.training.changes import call_for_help, proposed
from elche.training.entrance import Entrance
from elche.training.exchange import Met, Row
from elche.training.job import Job
from elche.training.journal import Journal
from elche.training.presence import Presence
from elche.training.reduction import Reduction
from elche.training.snapshot import Snapshot
from elche.training.stopping import Stopping
from elche.training.transfer import Transfer
from elche.world import World


class SetAside(Exception):  # noqa: N818 - no error: the others go on, and this rank may come back
    """This process is outside of the newest view."""


class Survival:
    """Keeps the job going while its members change.

    Attributes:
        presence: what this rank is at.
        entrance: the way back in.
        stopping: when the job or this rank ends early.
        snapshot: the state that newcomers get.
        reset_callbacks: called after ranks were lost or came.
    """

    presence: Presence
    entrance: Entrance
    stopping: Stopping
    snapshot: Snapshot
    reset_callbacks: list[Callable[[], None]]

    def __init__(
        self,
        world: World,
        job: Job,
        journal: Journal,
        snapshot: Snapshot,
        reduction: Reduction,
        commit: Callable[[], None],
        deal: Callable[[], None],
    ) -> None:
        """Join the parts.

        Args:
            world: the ranks.
            job: what all ranks know alike.
            journal: is told.
            snapshot: the state that newcomers get.
            reduction: knows whether the window under way was reduced here.
            commit: makes the window under way count as it was reduced.
            deal: plans the next window.
        """
        self._world, self._group, self._job, self._journal = world, world.group, job, journal
        self.snapshot, self._reduction = snapshot, reduction
        self._commit, self._deal = commit, deal
        self.stopping, self.reset_callbacks = Stopping(world, job), []
        self.presence = Presence(world, job)
        self._transfer = None if world.group is None else Transfer(world, world.group, snapshot)
        self.entrance = Entrance(world, job, journal, self._transfer)
        self._aside: dict[int, int] = {}  # by slot, the process that was set aside
        self._losses: list[tuple[Lost, Sequence[Range]]] = []
        self._heal_ms = 0.0
        self._entering: set[int] = set()  # processes that a view let in, and that have no state yet

    # Losses.

    def heal(self) -> None:
        """Go on without whoever is lost; called while a `CommError` is handled.

        Raises:
            CommError: the same again, where the job cannot go on without a rank.
            SetAside: the others go on without this one.
        """
        group = self._group
        if group is None:
            raise  # noqa: PLE0704 - the CommError that is being handled
        noticed = time.perf_counter()
        self._reduction.retire()
        while True:
            group.heal(lambda: (self._job.window, self._reduction.reduced), self._follow)
            if not group.inside:
                raise SetAside
            try:
                self._welcome(group.view)
            except CommError:
                continue
            self._heal_ms = 1e3 * (time.perf_counter() - noticed)
            self._tell_losses()
            self.presence.at_meeting(self._job.window)
            return

    def _follow(self, view: View) -> None:
        """Take over what a view says; the same on every member, whatever it was doing."""
        job, group = self._job, self._group
        assert group is not None
        if not group.inside:
            return
        if view.windows > job.window:
            self._commit()
        self._reduction.reduced = False
        job.slot = group.slot
        self._entering.update(view.entered)
        for process in view.entered:
            job.schedule.fill(slot := dict(view.members)[process])
            if (former := self._aside.pop(slot, process)) != process:
                self._world.guard.tell({"event": "evict", "process": former})
        if job.due:
            self._deal()
        if job.plan is not None:
            self._lose()

    def _lose(self) -> None:
        """Take whoever is lost out of the window that is dealt.

        Between two epochs that waits until the next one's first is: another member may have been there, and
        its plan had the lost ranks in it.
        """
        assert self._group is not None
        for lost in self._group.take_lost():
            _, slot, cause = lost.loss
            returned = self._job.lose(slot, reserved=cause == "silent")
            self._job.num_losses += cause != "left"
            if cause == "silent":
                self._aside[slot] = lost.loss.process
            if lost.loss.process in self._entering:
                self._entering.remove(lost.loss.process)  # nobody was told that it had joined
            else:
                self._losses.append((lost, returned))

    def _tell_losses(self) -> None:
        self._journal.take_over()
        for lost, returned in self._losses:
            self._journal.lost(lost, self._heal_ms, returned)
        if self._losses:
            self._reset()
        self._losses.clear()

    def _reset(self) -> None:
        for callback in self.reset_callbacks:
            callback()

    # Between two windows.

    def with_wishes(self, row: Row) -> Row:
        """Return this rank's row with what it wishes for, and whom it has heard knocking."""
        row = self.stopping.with_wish(row)
        if self._group is None:
            return row
        self._group.pulse.listen()  # its thread does so ten times a second: a window may be shorter
        knocks = self._group.pulse.knocks(self._job.epoch)
        return row.hearing(knocks[self._world.rank % len(knocks)] if knocks else None)

    def change_members(self, met: Met) -> None:
        """Let ranks go and processes enter, as all have agreed in the exchange of the window just committed.

        Args:
            met: that exchange.

        Raises:
            SetAside: this rank is one that goes, or the others go on without it.
        """
        group = self._group
        self.stopping.agree(met.rows)
        if group is None or self.stopping.stopping:
            return
        if self._world.rank == 0:
            call_for_help(group, self._job)
        proposal = proposed(met, group.view, self._job)
        if proposal is None or group.view.generation != met.generation:
            return
        begun = time.perf_counter()
        self._follow(group.settle(replace(proposal, started=group.num_started)))
        if not group.inside:
            raise SetAside
        try:
            group.rejoin()
            self._welcome(group.view)
        except CommError:
            self.heal()
            return
        self._heal_ms = 1e3 * (time.perf_counter() - begun)
        self._tell_losses()

    def stop_if_agreed(self) -> None:
        """Stop after this window, where all have agreed to."""
        if not self.stopping.stopping:
            return
        self._job.plan = None
        self._journal.confirm()
        while True:
            try:
                self.stopping.write()
            except CommError:
                if self._has_ended():
                    break
                self.heal()  # and write again: it may be the writer who was lost
            else:
                break
        self.stopping.finish()

    def _welcome(self, view: View) -> None:
        """Give newcomers the state; all members do this together."""
        if not view.entered or self._group is None or self._transfer is None:
            return
        begun = time.perf_counter()
        old = [process for process in view.processes if process not in view.entered]
        self._journal.take_over(old.index(self._group.process))
        self._journal.confirm()  # before a newcomer has to go on with the log: it knows of no window yet
        self._transfer.send(view)
        for process in view.entered:
            self._journal.joined(process, dict(view.members)[process], 1e3 * (time.perf_counter() - begun))
        self._entering.clear()
        self._reset()

    # The ends.

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to train for this rank."""
        return self.stopping.stopping or self.entrance.ended is not None

    def begin_epoch(self, epoch: int) -> None:
        """Deal the first window of an epoch."""
        if not self._job.begin_epoch(epoch):
            self._journal.epoch()
        if self._group is not None:
            self._group.pulse.epoch = epoch
            self._lose()
            self._tell_losses()

    def next_epoch(self, epoch: int) -> int | None:
        """Return the epoch that this rank goes through next; None: the job has ended, or stops."""
        found = None if self.is_over else self.entrance.next_epoch(epoch)
        return None if self.is_over else found

    def come_back(self) -> bool:
        """Knock after having been set aside; or end, where this rank was asked to leave."""
        self._reduction.retire()
        self._losses.clear()
        if self.stopping.is_leaving:
            self.stopping.leave()
        return self.entrance.come_back(self._job.epoch)

    def part(self, farewell: Callable[[], bool]) -> bool:
        """Say farewell, again where somebody is lost meanwhile; return whether all part together."""
        if self.stopping.stopping:
            return True
        if not self._world.inside:
            return False
        while True:
            try:
                together = self._say(farewell)
            except CommError:
                if self._has_ended():
                    return True
                try:
                    self.heal()
                except SetAside:
                    return False
                if self._group is not None:
                    self._lose()
                    self._tell_losses()
            else:
                if not together and self._group is not None:
                    self._group.await_dismissal()
                return together

    def _has_ended(self) -> bool:
        """Return whether all have parted: who is gone since has said so, and was not lost."""
        return self._group is not None and self._group.has_ended()

    def _say(self, farewell: Callable[[], bool]) -> bool:
        self.presence.at_meeting(self._job.window)
        together = farewell()
        if together or self._group is None:  # else the others go on, with the log too
            self._journal.confirm()
        if together and self._group is not None:
            self._world.comm.agree(True)  # the one who writes has written
        return together
