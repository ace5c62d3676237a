"""The plain values that go into the controller and come out of it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


@functools.total_ordering
class Phase(Enum):
    """How far the calibration has come; ordered."""

    PROBE = "probe"
    WARMUP = "warmup"
    STABLE = "stable"
    MATURE = "mature"

    @property
    def starts_at(self) -> int:
        """The calibrations after which the phase may start."""
        return STARTS_AT[self._value_]

    def __lt__(self, other: Phase) -> bool:
        return self.starts_at < other.starts_at

    def after(self, calibrations: int) -> Phase:
        """Return the next phase if that many calibrations reach it, else this one: one step at a time."""
        following = FOLLOWING.get(self._value_, self)
        return following if calibrations >= following.starts_at else self


STARTS_AT = {"probe": 0, "warmup": 1, "stable": 5, "mature": 20}
FOLLOWING = {"probe": Phase.WARMUP, "warmup": Phase.STABLE, "stable": Phase.MATURE}


@dataclass(frozen=True)
class WindowReport:
    """What was measured in one window. Sequences run over the slots; lists are the fastest.

    Attributes:
        wall_ms: time in compute.
        steps: batches computed.
        delivered_ms: time in compute and waiting for data, without the window's first batch.
        delivered_batches: batches in `delivered_ms`.
        fill_ms: what the first batch took longer than a later one.
        delivered_coherent: whether every living slot that moved has a delivered sample.
        sync_ms: duration of the exchange, the same number on every rank.
    """

    wall_ms: Sequence[float]
    steps: Sequence[int]
    delivered_ms: Sequence[float]
    delivered_batches: Sequence[int]
    fill_ms: Sequence[float]
    delivered_coherent: bool
    sync_ms: float

    def feed(self) -> tuple[Sequence[float], Sequence[int]]:
        """Return times and batches to schedule on, of one scale: mixed scales would invert the allocation.

        If delivery was coherent, slots with a delivered sample feed it and the others, which have not moved,
        their empty compute pair. If not, every slot feeds the compute scale.
        """
        if not self.delivered_coherent:
            return self.wall_ms, self.steps
        if all(ms > 0.0 for ms in self.delivered_ms) and all(n > 0 for n in self.delivered_batches):
            return self.delivered_ms, self.delivered_batches
        pairs = [
            (delivered, batches) if batches > 0 and delivered > 0.0 else (wall, steps)
            for delivered, batches, wall, steps in zip(
                self.delivered_ms, self.delivered_batches, self.wall_ms, self.steps, strict=True
            )
        ]
        return [ms for ms, _ in pairs], [batches for _, batches in pairs]


@dataclass(frozen=True)
class ElCheState:
    """What a checkpoint keeps of a controller: measurements, not settings.

    Attributes:
        anchor: batches of the slow slot per window.
        anchor_rank: the slow slot.
        smoothed_ms_per_batch: per slot its speed, 0.0 where unknown.
        phase: how far the calibration has come.
        calibration_count: calibrations so far.
    """

    anchor: int
    anchor_rank: int | None
    smoothed_ms_per_batch: Sequence[float]
    phase: Phase
    calibration_count: int
