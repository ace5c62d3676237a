"""The life of a window on one rank: plan, batches, exchange, reduce, agreement, commit.

Every branch that holds a collective follows from a number all ranks know: the plan, or what they gathered.
What happens when a rank is lost or enters is in `survival.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from torch import Tensor

from elche.config import Cadence
from elche.elastic.snapshots import Snapshots
from elche.errors import CommError, ElcheError
from elche.policy.dispatch import EpochPool, Range
from elche.policy.weights import mean_scale, total_mass
from elche.training import refusals
from elche.training.buffers import Buffers
from elche.training.carrier import Carrier
from elche.training.exchange import Exchange, Met, Row
from elche.training.gradients import Gradients
from elche.training.job import Job
from elche.training.journal import Journal
from elche.training.reduction import Reduction
from elche.training.replicas import Replicas
from elche.training.snapshot import Snapshot
from elche.training.survival import SetAside, Survival
from elche.training.timing import Stopwatch
from elche.world import World

if TYPE_CHECKING:
    from elche.training.loader import DataLoader


class WindowEngine(Carrier):
    """Runs windows for one optimizer; the loader asks it for batches, the optimizer tells it of steps.

    Attributes:
        job: what all ranks know alike.
        survival: what happens when the members change, or the job is to stop.
        skipped: batches that all ranks left out as not finite, for each window since the list was last
            cleared; a GradScaler lives on it.
    """

    job: Job
    survival: Survival
    skipped: list[int]

    def __init__(
        self,
        world: World,
        cadence: Cadence,
        job: Job,
        gradients: Gradients,
        buffers: Buffers,
        update: Callable[[int], float],
        replicas: Replicas,
        snapshot: Snapshot,
    ) -> None:
        """Join the parts.

        Args:
            world: the ranks.
            cadence: the user's settings.
            job: what all ranks know alike.
            gradients: this rank's, and their buckets.
            buffers: the model's.
            update: steps the plain optimizer on the mean gradients of so many samples; returns its
                learning rate.
            replicas: keeps all ranks equal.
            snapshot: the state that newcomers get.
        """
        self._world, self._cadence, self.job = world, cadence, job
        self._gradients, self._buffers = gradients, buffers
        self._update, self._replicas = update, replicas
        self._stopwatch, self._journal = Stopwatch(gradients.device), Journal(world, job)
        self._pending: tuple[Range, float] | None = None
        self._exchange = Exchange(world, len(gradients.names) + len(buffers.names) + 2)
        self._reduction = Reduction(world, self._exchange, gradients, buffers, replicas)
        self.survival = Survival(
            world, job, self._journal, snapshot, self._reduction, self._commit, self._deal
        )
        self._snapshots = Snapshots(world.environment)
        self._num_done = self._told = 0
        self._scaled = self._began = self._is_first = False
        self._row: Row | None = None
        self._met: Met | None = None
        self.skipped = []

    # The loader's side.

    def follow_loader(self, loader: DataLoader) -> None:
        """Know which loader this works for."""
        self._loader = weakref.ref(loader)

    def begin_epoch(self, epoch: int) -> EpochPool:
        """Deal the first window of an epoch; a rank that enters in its midst goes on where the others are.

        Args:
            epoch: its number.

        Returns:
            The epoch's pool, to look ahead in. Where the job is past this epoch, or stops, there is no plan.
        """
        self._exchange.check()
        job, survival, self._is_first = self.job, self.survival, True
        other, self._world.engine = self._world.engine, self
        if other is not None and other is not self and other.in_epoch():
            self.fail(refusals.two_loaders())
        if survival.is_over or not survival.entrance.ensure_inside(epoch) or self.is_past(epoch):
            return job.make_pool(job.num_slots, None)
        if survival.entrance.take_fresh(epoch):
            assert job.pool is not None
            return job.pool
        if job.in_epoch and job.pool is not None:
            self.fail(refusals.loop_left(job.pool))
        if not self._began and not survival.entrance.has_entered:
            self._world.start_up(lambda _: self._start_equal(epoch))
        self._began = True
        survival.begin_epoch(epoch)
        assert job.pool is not None
        return job.pool

    def _start_equal(self, epoch: int) -> None:
        """Give every rank rank 0's state, after an exchange in which all hear of a rank that has failed."""
        self._reduction.meet(Row(self.job.window, epoch))
        self._replicas.send_all()

    def next_range(self) -> Range | None:
        """Return this rank's next batch; closes windows in which it has none; None at the epoch's end."""
        self._exchange.check()
        if self._pending is not None:
            self.fail(refusals.no_step(self._pending[0]))
        while self.plan is not None and not self.plan.share[self._num_done :]:
            had = self._gradients.there()
            self._close()
            self._gradients.clear(had)  # the script had no batch: it will not zero what it did not make
        if self.plan is not None and self._num_done == 0:
            self.keep_snapshot()
        self.survival.presence.at_batch(self.plan, first=self._is_first)
        return next(iter(self.open_share()), None)

    def open_share(self) -> tuple[Range, ...]:
        """Return this rank's batches of the window that are not stepped yet."""
        return () if self.plan is None else self.plan.share[self._num_done :]

    def hand_over(self, position: Range, weight: float, data_ms: float) -> None:
        """Note that the training loop has this batch from now on.

        Args:
            position: where its samples lie in the epoch's permutation.
            weight: what it counts in the mean.
            data_ms: how long the loop waited for it.
        """
        self._pending = position, weight
        if len(self.open_share()) == 1:
            self._reduction.begin_early(weight)
        self._stopwatch.begin(position[1] - position[0], data_ms)

    # The optimizer's side.

    def step(self, loss: float | Tensor | None, *, scaled: bool = False) -> bool:
        """Take the gradients of the batch that was handed over; at the share's end close the window.

        Args:
            loss: the batch's, for the log; None: not told.
            scaled: whether a GradScaler looks after inf and nan: such a batch is skipped then.

        Returns:
            Whether the parameters were updated.
        """
        self._exchange.check()
        if self._pending is None or self.plan is None:
            self.fail(refusals.no_batch())
        (position, weight), self._pending = self._pending, None
        self._scaled = scaled
        nonfinite = "skip" if scaled else self._cadence.nonfinite
        if nonfinite == "raise":
            self._refuse_nonfinite(position)
        self._gradients.accumulate(weight, position[1] - position[0], check=nonfinite == "skip")
        self._stopwatch.end(loss)
        self.survival.presence.after_batch()
        self._is_first = False
        self._num_done += 1
        is_done = self._num_done == len(self.plan.share) or self._world.is_passed_over()
        updated = is_done and self._close()
        self.survival.presence.after_step()
        self._told += updated
        return updated

    def fail(self, error: ElcheError) -> NoReturn:
        """Raise `error` here and the like on every rank, at the exchange the others come to next.

        Args:
            error: why this rank cannot go on.
        """
        self._exchange.fail(error, self.job.window)

    def in_epoch(self) -> bool:
        """Return whether samples of an epoch are still to be trained."""
        return self._exchange.broken is None and self.job.in_epoch and not self.survival.is_over

    def leave(self) -> bool:
        """Part from the others, before this rank's world ends; return whether all part together."""
        together = self.survival.part(lambda: self._exchange.leave(self.job.window))
        self._exchange.broken = self._exchange.broken or refusals.shut_down()
        return together

    # The window's end.

    def _close(self) -> bool:
        """Meet the others at the one weighted average; return whether the parameters were updated."""
        job, window, num_updates = self.job, self.job.window, self.job.num_updates
        try:
            self.survival.presence.at_meeting(window)
            while job.window == window:
                try:
                    self._met = self._reduction.meet(self._word())
                    self._journal.confirm()
                    self._reduction.reduce(self._met, num_updates)
                    self._commit()
                except CommError:
                    self.survival.heal()
            assert self._met is not None
            self._compare_replicas()  # before anybody enters, who would not come to it
            self.survival.change_members(self._met)
            if job.due:
                self._deal()
            self.survival.stop_if_agreed()
        except SetAside:
            self._drop()
            return self.survival.come_back()
        finally:
            self._num_done = 0
        return job.num_updates > num_updates

    def _word(self) -> Row:
        """Return what this rank tells: measured once, however often it is told."""
        if self._row is None:
            self._row = Row(
                self.job.window,
                self.job.epoch,
                self._told,
                self._replicas.hash_of_settings(),
                self._reduction.sync_ms,
                *self._gradients.totals(),
                measured=self._stopwatch.close(),
            )
        return self.survival.with_wishes(self._row)

    def _commit(self) -> None:
        """Make the window count as it was reduced: parameters, buffers, ledger, policy, event."""
        job, plan, met = self.job, self.plan, self._met
        assert plan is not None
        assert met is not None
        total = total_mass(row.weight for row in met.rows)
        scale = mean_scale(total)
        if scale is not None:
            self._gradients.commit(met.present, scale, self._cadence.max_grad_norm)
            job.lr = self._update(sum(row.counted for row in met.rows))
            job.num_updates += 1
        self._buffers.commit(sum(met.moved))
        rows = met.by_slot(job.num_slots)
        verdict = job.commit([row.measured for row in rows], max(row.sync_ms for row in met.rows))
        self.skipped.append(sum(row.skipped for row in met.rows))
        self._row, self._num_done = None, 0
        self._reduction.settle(updated=scale is not None)
        self._gradients.begin()
        self._journal.slots_dead()
        self._journal.window(plan, rows, self._reduction.sync_ms, verdict, updated=scale is not None)
        if self.skipped[-1] and not self._scaled:
            self._journal.skipped([row.skipped for row in met.rows])

    def _deal(self) -> None:
        """Plan the next window of the epoch; where nothing is left, the epoch is over."""
        if not self.job.deal():
            self._journal.epoch()

    def _compare_replicas(self) -> None:
        every = self._cadence.resync_every
        if not every or self.job.window % every:
            return
        try:
            if differing := self._replicas.compare():
                self._journal.differed(self.job.window, differing)
        except CommError:
            self.survival.heal()  # the next comparison will do

    def _drop(self) -> None:
        """Forget the window under way: the others go on without this rank's part."""
        self._row = self._met = self.job.plan = None
        self._reduction.drop()
        self._stopwatch = Stopwatch(self._gradients.device)

    def _refuse_nonfinite(self, position: Range) -> None:
        if names := self._gradients.nonfinite_names():
            self.fail(refusals.not_finite(names, position))
