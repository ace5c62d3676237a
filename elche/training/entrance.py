"""The way in for a process outside: a spare, a seat that was woken, a rank that was set aside."""

from __future__ import annotations

from elche.errors import CommError
from elche.policy.membership import Kind
from elche.training.job import Job
from elche.training.journal import Journal
from elche.training.transfer import Transfer
from elche.world import World


class Entrance:
    """Knocks until this process is let in, and tells the script's loops which epoch is theirs.

    A script goes through epochs at its own pace. Where the job is past the one it asks for, that loop is
    empty; it enters in the one where the others are.

    Attributes:
        ended: why the job has ended without this process; None while it has not.
        has_entered: whether it ever came in this way.
    """

    ended: str | None
    has_entered: bool

    def __init__(self, world: World, job: Job, journal: Journal, transfer: Transfer | None) -> None:
        """Stand where this process is.

        Args:
            world: the ranks.
            job: what all ranks know alike.
            journal: is told who goes on with the log.
            transfer: brings the state; None where nobody enters.
        """
        self._world, self._group, self._job, self._journal = world, world.group, job, journal
        self._transfer = transfer
        self._kind: Kind = "seat" if world.group is not None and world.group.is_seat else "spare"
        self._fresh = False
        self._others_epoch = 0
        self.ended, self.has_entered = None, False

    def ensure_inside(self, epoch: int) -> bool:
        """Be a member; where this process is outside, knock until it is let in.

        Args:
            epoch: the one this rank's script wants to go through.

        Returns:
            Whether it is a member now; not where the others are in a later epoch, or have ended.
        """
        return self._world.inside or self._enter(epoch)

    def come_back(self, epoch: int) -> bool:
        """Knock after having been set aside in this epoch; return whether this rank takes part again."""
        self._kind = "returning"
        entered = self._enter(epoch)
        self._fresh = False
        return entered

    def take_fresh(self, epoch: int) -> bool:
        """Return, once, whether this rank has just entered this epoch, of which nothing may be left."""
        fresh, self._fresh = self._fresh, False
        return fresh and self._job.epoch == epoch

    def next_epoch(self, epoch: int) -> int | None:
        """Return the epoch that this rank goes through next, after entering where it is outside.

        Args:
            epoch: the one its own script would begin.

        Returns:
            The job's; None: the job has ended.
        """
        while self.ended is None and not self._world.inside:
            if self._enter(max(epoch, self._others_epoch)):
                break
        if self.ended is not None:
            return None
        # An epoch of which nothing is left is gone through too: the script's schedulers step at its end.
        return self._job.epoch if self._fresh else epoch

    def _enter(self, epoch: int) -> bool:
        group, transfer, job = self._group, self._transfer, self._job
        assert group is not None
        assert transfer is not None
        job.plan, self._others_epoch = None, epoch
        self._journal.hand_over()
        while True:
            entry = group.knock(self._kind, job.slot, epoch)
            if entry.view is None:
                self.ended = entry.ended
                self._others_epoch = epoch if entry.epoch is None else entry.epoch
                return False
            try:
                group.rejoin()
                transfer.receive(entry.view)
            except CommError:
                group.decline()
                continue
            group.enter()
            self.has_entered, self._fresh, self._kind = True, True, "returning"
            group.pulse.epoch = job.epoch
            self._journal.take_over()
            return True
