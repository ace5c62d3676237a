"""The plain values that go into the controller and its detectors, and come out of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from elche.errors import ConfigError
from elche.policy.checks import one_per_slot

NORM_FLOOR = 1e-10
VERDICT_KINDS = ("stable", "suppress_growth", "nudge_down")


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

    def __post_init__(self) -> None:
        for name in ("steps", "delivered_ms", "delivered_batches"):
            one_per_slot(name, getattr(self, name), len(self.wall_ms))

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


@dataclass(frozen=True)
class Verdict:
    """A detector's word on the cadence, made by one of the three class methods.

    Attributes:
        kind: "stable" | "suppress_growth" | "nudge_down".
        factor: what the anchor is multiplied by; only for "nudge_down".
        relax_up: whether the anchor may also grow by one; only for "stable".
    """

    kind: Literal["stable", "suppress_growth", "nudge_down"]
    factor: float | None = None
    relax_up: bool = False

    def __post_init__(self) -> None:
        if self.kind not in VERDICT_KINDS:
            raise ConfigError(f"the kind of a verdict is {self.kind!r}; it must be one of {VERDICT_KINDS}")

    @classmethod
    def stable(cls, relax_up: bool = False) -> Verdict:
        """Nothing stands against growth."""
        return cls("stable", relax_up=relax_up)

    @classmethod
    def suppress_growth(cls) -> Verdict:
        """Windows must not grow until five stable verdicts have come in a row."""
        return cls("suppress_growth")

    @classmethod
    def nudge_down(cls, factor: float) -> Verdict:
        """Windows must shrink to `factor` of their length, and not grow."""
        return cls("nudge_down", factor=factor)


@dataclass(frozen=True)
class DivergenceReport:
    """How far the slots had drifted apart when their parameters were averaged.

    Attributes:
        deltas: per slot ||pre - post|| / ||post||, 0 where ||post|| <= 1e-10.
        pre_norms: per slot ||pre||, the norm of its parameters before the average.
        post_norm: ||post||, the norm of the averaged parameters.
    """

    deltas: Sequence[float]
    pre_norms: Sequence[float] | None = None
    post_norm: float | None = None

    def __post_init__(self) -> None:
        if self.pre_norms is not None:
            one_per_slot("pre_norms", self.pre_norms, len(self.deltas))

    @property
    def max_relative_delta(self) -> float:
        """D, the largest delta, 0 without one; a NaN counts for nothing."""
        return max((delta for delta in self.deltas if delta > 0.0), default=0.0)

    @property
    def cosine_similarities(self) -> list[float] | None:
        """Per slot the cosine between its parameters and the average.

        cos = (pre^2 + post^2 - (delta * post)^2) / (2 * pre * post), clamped to [-1, 1]; None when a norm
        is unknown or ||post|| <= 1e-10.
        """
        post = self.post_norm
        if self.pre_norms is None or post is None or post <= NORM_FLOOR:
            return None
        return [
            _cosine(pre, post, delta * post) for pre, delta in zip(self.pre_norms, self.deltas, strict=True)
        ]

    @property
    def magnitude_shifts(self) -> list[float] | None:
        """Per slot ||pre|| - ||post||; None when a norm is unknown."""
        if self.pre_norms is None or self.post_norm is None:
            return None
        return [pre - self.post_norm for pre in self.pre_norms]


def _cosine(pre: float, post: float, distance: float) -> float:
    """Law of cosines for a triangle with these sides; 0 where a side has no direction."""
    if pre <= NORM_FLOOR:
        return 0.0
    cosine = (pre * pre + post * post - distance * distance) / (2.0 * pre * post)
    return max(-1.0, min(1.0, cosine))
