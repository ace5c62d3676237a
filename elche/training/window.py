"""The life of a window on one rank: plan, batches, exchange, reduce, agreement, commit.

Every branch that holds a collective follows from a number all ranks know: the plan, or what they gathered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from torch import Tensor

from elche.config import Cadence
from elche.errors import CommError, ElcheError, NonFiniteError, UsageError
from elche.policy.dispatch import EpochPool, Range
from elche.policy.ledger import window_report
from elche.policy.schedule import Schedule
from elche.policy.weights import mean_scale, total_mass
from elche.training.buffers import Buffers
from elche.training.exchange import Exchange, Row
from elche.training.gradients import Gradients
from elche.training.journal import Journal
from elche.training.plan import Plan
from elche.training.replicas import Replicas
from elche.training.timing import Stopwatch
from elche.world import World


class WindowEngine:
    """Runs windows for one optimizer; the loader asks it for batches, the optimizer tells it of steps.

    Attributes:
        plan: the current window's; None between epochs.
        num_updates: committed updates so far.
        skipped: batches that all ranks left out as not finite, for each window since the list was last
            cleared; a GradScaler lives on it.
    """

    plan: Plan | None
    num_updates: int
    skipped: list[int]

    def __init__(
        self,
        world: World,
        cadence: Cadence,
        schedule: Schedule,
        gradients: Gradients,
        buffers: Buffers,
        make_pool: Callable[[int], EpochPool],
        update: Callable[[int], float],
        replicas: Replicas,
    ) -> None:
        """Join the parts.

        Args:
            world: the ranks.
            cadence: the user's settings.
            schedule: who does how much.
            gradients: this rank's, and their buckets.
            buffers: the model's.
            make_pool: returns the batches of a fresh epoch, for so many slots.
            update: steps the plain optimizer on the mean gradients of so many samples; returns its
                learning rate.
            replicas: keeps all ranks equal.
        """
        self._world, self._cadence, self._schedule = world, cadence, schedule
        self._gradients, self._buffers = gradients, buffers
        self._make_pool, self._update, self._replicas = make_pool, update, replicas
        self._stopwatch, self._journal = Stopwatch(gradients.device), Journal(world, schedule)
        self._pool: EpochPool | None = None
        self._pending: tuple[Range, float] | None = None
        self._exchange = Exchange(world.comm, len(gradients.names) + len(buffers.names))
        self._num_done = self._told = 0
        self._window = self._epoch_start = 0
        self._sync_ms = 0.0
        self._scaled = False
        self._lr = 0.0
        self.plan = None
        self.num_updates = 0
        self.skipped = []

    # The loader's side.

    def begin_epoch(self, epoch: int) -> EpochPool:
        """Deal the first window of an epoch.

        Args:
            epoch: its number.

        Returns:
            The epoch's pool, to look ahead in.
        """
        self._exchange.check()
        other, self._world.engine = self._world.engine, self
        if other is not None and other is not self and other.in_epoch():
            self.fail(
                UsageError(
                    "two loaders are gone through at once, each with an optimizer of its own: let each epoch "
                    "run to its end, or give all parameters to one optimizer"
                )
            )
        if self._pool is not None and not self._pool.exhausted:
            left = sum(stop - start for start, stop in self._pool.uncovered())
            self.fail(
                UsageError(
                    f"the loop was left with {left} samples of the epoch not trained yet; elche deals every "
                    "sample of an epoch once: let the loop over the loader run to its end"
                )
            )
        if self._window == 0:
            self._start_equal(epoch)
        self._pool, self._epoch_start = self._make_pool(self._world.comm.size), self._window
        self._pool.assign_spans(self._schedule.counts(), self._schedule.living)
        self._deal(epoch)
        return self._pool

    def _start_equal(self, epoch: int) -> None:
        """Give every rank rank 0's state, after an exchange in which all hear of a rank that has failed."""
        self._exchange.meet(Row(0, epoch), [*self._gradients.present, *self._changed_buffers()])
        self._replicas.send_all()

    def next_range(self) -> Range | None:
        """Return this rank's next batch; closes windows in which it has none; None at the epoch's end."""
        self._exchange.check()
        if self._pending is not None:
            (start, stop), _ = self._pending
            self.fail(
                UsageError(
                    f"optimizer.step() was not called for the batch of samples {start}..{stop}; call it for "
                    "every batch: accumulation over batches is the cadence's work (anchor=)"
                )
            )
        while self.plan is not None and not self.plan.share:
            had = self._gradients.there()
            self._close()
            self._gradients.clear(had)  # the script had no batch: it will not zero what it did not make
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
            self.fail(UsageError("optimizer.step() without a batch: one step for each batch of the loader"))
        (position, weight), self._pending = self._pending, None
        self._scaled = scaled
        nonfinite = "skip" if scaled else self._cadence.nonfinite
        if nonfinite == "raise":
            self._refuse_nonfinite(position)
        self._gradients.accumulate(weight, position[1] - position[0], check=nonfinite == "skip")
        self._stopwatch.end(loss)
        self._num_done += 1
        updated = self._num_done == len(self.plan.share) and self._close()
        self._told += updated
        return updated

    def fail(self, error: ElcheError) -> NoReturn:
        """Raise `error` here and the like on every rank, at the exchange the others come to next.

        Args:
            error: why this rank cannot go on.

        Raises:
            ElcheError: always.
        """
        self._exchange.fail(error, self._window)

    def in_epoch(self) -> bool:
        """Return whether samples of an epoch are still to be trained."""
        return self._exchange.broken is None and self._pool is not None and not self._pool.exhausted

    def leave(self) -> None:
        """Part from the others, before this rank's world ends."""
        self._exchange.leave(self._window)

    # The window's end.

    def _close(self) -> bool:
        """Meet the others at the one weighted average; return whether the parameters were updated."""
        rows, present, changed = self._meet()
        met = time.perf_counter()
        told = [row.told for row in rows]
        self._replicas.agree_on_settings([row.settings for row in rows], told, self.num_updates)
        moved = [row.measured.steps > 0 for row in rows]
        self._reduce(changed, moved)
        if not self._world.comm.agree(True):
            raise CommError(f"window {self._window} was not agreed on by all ranks")
        self._sync_ms = 1e3 * (time.perf_counter() - met)
        return self._commit(rows, present, sum(moved))

    def _meet(self) -> tuple[list[Row], list[bool], list[bool]]:
        """Exchange words: every rank's row, which parameters have a gradient, which buffers changed."""
        plan = self.plan
        assert plan is not None
        changed = self._changed_buffers()
        row = Row(
            self._window,
            plan.epoch,
            self._told,
            self._replicas.hash_of_settings(),
            self._sync_ms,
            *self._gradients.totals(),
            measured=self._stopwatch.close(),
        )
        num_parameters = len(self._gradients.present)
        rows, truths = self._exchange.meet(row, [*self._gradients.present, *changed])
        return rows, truths[:num_parameters], truths[num_parameters:]

    def _changed_buffers(self) -> list[bool]:
        try:
            return self._buffers.changed()
        except UsageError as error:
            self.fail(error)

    def _reduce(self, changed: Sequence[bool], moved: Sequence[bool]) -> None:
        """Sum gradients and buffers over the ranks, out of place."""
        rank = self._world.comm.rank
        sends, sums = self._gradients.to_host()
        if any(changed):
            more_sends, more_sums = self._buffers.pack(changed, moved[rank], moved.index(True) == rank)
            sends, sums = [*sends, *more_sends], [*sums, *more_sums]
        self._world.comm.all_reduce(sends, sums)

    def _commit(self, rows: Sequence[Row], present: Sequence[bool], num_moved: int) -> bool:
        """Make the window count: parameters, buffers, ledger, policy, next plan, event."""
        plan, pool = self.plan, self._pool
        assert plan is not None
        assert pool is not None
        measured = [row.measured for row in rows]
        total = total_mass(row.weight for row in rows)
        scale = mean_scale(total)
        if scale is not None:
            self._gradients.commit(present, scale, self._cadence.max_grad_norm)
            self._lr = self._update(sum(row.counted for row in rows))
            self.num_updates += 1
        self._buffers.commit(num_moved)
        pool.commit()
        sync_ms = max(row.sync_ms for row in rows)
        verdict = self._schedule.observe(window_report(measured, self._schedule.living, sync_ms), self._lr)
        self.skipped.append(sum(row.skipped for row in rows))
        self._window += 1
        self._num_done = 0
        self._gradients.begin()
        self._journal.window(plan, rows, self._sync_ms, self._lr, verdict, updated=scale is not None)
        self._deal(plan.epoch)
        every = self._cadence.resync_every
        if every and self._window % every == 0 and (differing := self._replicas.compare()):
            self._journal.differed(self._window, differing)
        if self.skipped[-1] and not self._scaled:
            self._journal.skipped([row.skipped for row in rows])
        return scale is not None

    def _deal(self, epoch: int) -> None:
        """Plan the next window of the epoch; where nothing is left, the epoch is over."""
        assert self._pool is not None
        if self._pool.exhausted:
            self.plan = None
            self._journal.epoch(epoch, self._window - self._epoch_start, self.num_updates)
            return
        counts, living = self._schedule.counts(), self._schedule.living
        ranges = self._pool.deal(counts, living=living, ms_per_batch=self._schedule.ms_per_batch())
        self.plan = Plan(epoch, self._window, self._world.comm.rank, tuple(map(len, ranges)), ranges)

    def _refuse_nonfinite(self, position: Range) -> None:
        names, (start, stop) = self._gradients.nonfinite_names(), position
        if names:
            self.fail(
                NonFiniteError(
                    f"inf or nan in the gradients of {', '.join(names[:5])} for the batch of samples "
                    f"{start}..{stop}, and nonfinite='raise'"
                )
            )
