"""What all ranks know alike, besides tensors: how far the job is, who holds which slot, what is to be done.

Every method is called on all ranks with the same arguments, so this is one state in many places; a newcomer
gets it as `state_dict()`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elche.policy.dispatch import EpochPool, Range
from elche.policy.guards import Verdict
from elche.policy.ledger import SlotReport, window_report
from elche.policy.schedule import Schedule
from elche.training.plan import Plan

MakePool = Callable[[int, Sequence[Range] | None], EpochPool]

COUNTERS = ("window", "epoch", "epoch_start", "num_updates", "num_losses", "wanted", "lr")


class Job:
    """The replicated state of the training.

    Attributes:
        schedule: who does how much.
        pool: the epoch's batches; None before the first epoch.
        plan: the window under way; None where none is dealt: between epochs, and between a commit and the
            next deal.
        slot: the one this rank holds.
        window: windows committed so far, the number of the one under way.
        epoch: the epoch under way, or the last one.
        epoch_start: the window with which it began.
        num_updates: windows that changed the parameters.
        lr: the learning rate of the last update.
        num_losses: ranks that died or were set aside so far.
        wanted: how many ranks there shall be.
        first_ranks: how many there were at first.
        due: whether a window was committed and the next one is not dealt yet.
    """

    schedule: Schedule
    pool: EpochPool | None
    plan: Plan | None
    slot: int
    window: int
    epoch: int
    epoch_start: int
    num_updates: int
    lr: float
    num_losses: int
    wanted: int
    first_ranks: int
    due: bool

    def __init__(self, schedule: Schedule, make_pool: MakePool, slot: int) -> None:
        """Begin before the first epoch.

        Args:
            schedule: who does how much.
            make_pool: returns the batches of an epoch, or of what is left of one, for so many slots.
            slot: the one this rank holds; -1: none yet.
        """
        self.schedule, self.make_pool, self.slot = schedule, make_pool, slot
        self.pool, self.plan = None, None
        self.window = self.epoch = self.epoch_start = self.num_updates = self.num_losses = 0
        self.wanted = self.first_ranks = sum(schedule.living)
        self.lr, self.due = 0.0, False
        self._left: list[Range] | None = None

    @property
    def num_slots(self) -> int:
        """How many slots there are, whoever holds them."""
        return len(self.schedule.living)

    @property
    def in_epoch(self) -> bool:
        """Whether samples of the epoch are still to be trained."""
        return self.pool is not None and not self.pool.exhausted

    def begin_epoch(self, epoch: int) -> bool:
        """Take out an epoch's batches, or what a resumed job left; return whether there is a window."""
        left, self._left = self._left, None
        if left is None or epoch != self.epoch:
            left, self.epoch_start = None, self.window
        self.pool, self.epoch = self.make_pool(self.num_slots, left), epoch
        self.pool.assign_spans(self.schedule.counts(), self.schedule.living)
        return self.deal()

    def resume(self, state: Mapping[str, Any], left: Sequence[Range] | None) -> None:
        """Take up what another job left, on however many ranks; speeds are measured afresh.

        Args:
            state: that job's `state_dict`.
            left: positions of its epoch that no window has covered; None: it was between epochs.
        """
        for name in ("window", "epoch", "epoch_start", "num_updates", "lr"):
            setattr(self, name, state[name])
        self.pool, self._left = None, list(left) if left else None

    @property
    def left(self) -> list[Range] | None:
        """Positions of the epoch that no window has covered; None between epochs."""
        return self._left if self.pool is None else list(self.pool.uncovered()) or None

    @property
    def next_epoch(self) -> int:
        """The epoch that a resumed job goes on with."""
        return self.epoch if self._left is not None or self.window == 0 else self.epoch + 1

    def deal(self) -> bool:
        """Plan the next window.

        Returns:
            Whether there is one; else the epoch is over.
        """
        assert self.pool is not None
        self.due = False
        if self.pool.exhausted:
            self.plan = None
            return False
        counts, living = self.schedule.counts(), self.schedule.living
        ranges = self.pool.deal(counts, living=living, ms_per_batch=self.schedule.ms_to_deal_by())
        self._plan(ranges)
        return True

    def commit(self, measured: Sequence[SlotReport], sync_ms: float) -> Verdict:
        """Count the window under way as trained, and learn from it.

        Args:
            measured: by slot, what was measured.
            sync_ms: what the window before took to reduce and agree, the maximum over the ranks.

        Returns:
            What the detectors said.
        """
        assert self.pool is not None
        self.pool.commit()
        self.plan, self.due = None, True
        self.window += 1
        return self.schedule.observe(window_report(measured, self.schedule.living, sync_ms), self.lr)

    def lose(self, slot: int, *, reserved: bool) -> tuple[Range, ...]:
        """Go on without the process of a slot; what it was dealt and did not commit is to be dealt again.

        Args:
            slot: which.
            reserved: whether its process may come back to it.

        Returns:
            The batches given back.
        """
        self.schedule.lose(slot, reserved=reserved)
        if self.plan is None or self.pool is None:
            return ()
        returned = self.pool.give_back([slot])
        self._plan(self.pool.dealt, self.plan.counts)
        return returned

    def state_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **{name: getattr(self, name) for name in COUNTERS},
            "schedule": self.schedule.state_dict(),
            "pool": None if self.pool is None else self.pool.state_dict(),
            "counts": None if self.plan is None else list(self.plan.counts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue as the one whose state it is; the pool that a loader looks ahead in stays the same object.

        Args:
            state: what `state_dict` returned, on a rank with the same settings.
        """
        for name in COUNTERS:
            setattr(self, name, state[name])
        self.due = False
        self.schedule.load_state_dict(state["schedule"])
        self.plan = None
        if state["pool"] is not None:
            self.pool = self.pool or self.make_pool(self.num_slots, None)
            self.pool.load_state_dict(state["pool"])
            if state["counts"] is not None:
                self._plan(self.pool.dealt, tuple(state["counts"]))

    def _plan(self, ranges: Sequence[tuple[Range, ...]], counts: tuple[int, ...] | None = None) -> None:
        counts = tuple(map(len, ranges)) if counts is None else counts
        self.plan = Plan(self.epoch, self.window, self.slot, counts, tuple(ranges))
