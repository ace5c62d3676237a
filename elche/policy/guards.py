"""Divergence guards: what the drift of the replicas says about the cadence.

Whoever watches the training answers a `DivergenceReport` with a `Verdict`; `ElChe.apply_verdict` is the
only place where a verdict takes effect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from elche.errors import ConfigError

TREND_HISTORY = 5
DIVERGENCE_FLOOR = 1e-8  # a smaller divergence has no growth rate worth the name
NORM_FLOOR = 1e-10


@dataclass(frozen=True)
class Verdict:
    """A detector's word on the cadence, made by one of the three class methods.

    Attributes:
        kind: "stable" | "suppress_growth" | "nudge_down".
        factor: what the anchor is multiplied by; only for "nudge_down".
        relax_up: whether the anchor may also grow by one; only for "stable".
    """

    kind: str
    factor: float | None = None
    relax_up: bool = False

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
        if self.pre_norms is not None and len(self.pre_norms) != len(self.deltas):
            raise ConfigError(f"pre_norms has {len(self.pre_norms)} values; deltas has {len(self.deltas)}")

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


class Guard(Protocol):
    """Any object that turns divergence into verdicts; users bring their own."""

    def report(self, report: DivergenceReport, k_used: int, k_max: int) -> Verdict:
        """Judge one window, in which the slots together did `k_used` batches and the busiest `k_max`."""
        ...

    def telemetry(self) -> dict[str, float]:
        """Return the figures behind the last verdict, for the log."""
        ...

    def reset(self) -> None:
        """Forget what was seen; the settings stay."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what was seen, as plain values: a joining rank loads it."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from another guard's `state_dict`."""
        ...


class NoGuard:
    """Always stable."""

    def report(self, report: DivergenceReport, k_used: int, k_max: int) -> Verdict:  # noqa: ARG002
        """Return `Verdict.stable()`."""
        return Verdict.stable()

    def telemetry(self) -> dict[str, float]:
        """Return no figures."""
        return {}

    def reset(self) -> None:
        """Do nothing: there is no state."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: there is no state."""


class TrendGuard:
    """Suppress growth while the divergence rises twice in a row and ends above `threshold`.

    Args:
        threshold: relative divergence D under which a rise does not matter.
    """

    def __init__(self, threshold: float = 0.05) -> None:
        self.threshold = _number("threshold", threshold)
        self.history: list[float] = []

    def report(self, report: DivergenceReport, k_used: int, k_max: int) -> Verdict:  # noqa: ARG002
        """Judge one window by the last three values of D."""
        self.history = [*self.history, report.max_relative_delta][-TREND_HISTORY:]
        if len(self.history) < 3:
            return Verdict.stable()
        first, second, last = self.history[-3:]
        rising = first < second < last and last > self.threshold
        return Verdict.suppress_growth() if rising else Verdict.stable()

    def telemetry(self) -> dict[str, float]:
        """Return the last D as `d_history_last`."""
        return {"d_history_last": self.history[-1]} if self.history else {}

    def reset(self) -> None:
        """Forget the history."""
        self.history = []

    def state_dict(self) -> dict[str, Any]:
        """Return the history."""
        return {"history": list(self.history)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from another guard's history."""
        self.history = list(state["history"])


@dataclass
class MsfState:
    """What an `MsfGuard` has seen.

    Attributes:
        previous: D of the last window, None if it had none to measure.
        lambda_raw: growth rate of the last window, None without one.
        mean: exponential mean of the rates, starting from 0.
        bias: share of that 0 in the mean, alpha ** rates; 1 before the first rate.
        suppress_streak: windows in a row above the suppress threshold.
        nudge_streak: windows in a row above the nudge threshold.
    """

    previous: float | None = None
    lambda_raw: float | None = None
    mean: float = 0.0
    bias: float = 1.0
    suppress_streak: int = 0
    nudge_streak: int = 0

    @property
    def lambda_ema(self) -> float | None:
        """The mean without its bias; None before the first rate."""
        return None if self.bias == 1.0 else self.mean / (1.0 - self.bias)


class MsfGuard:
    """Watch the growth rate of the divergence, the largest exponent of the master stability function.

    lambda = ln(D_t / D_{t-1}) / k_max per window, smoothed by an exponential mean with bias correction.
    A smoothed lambda above a threshold for as many windows as its sustain says fires; a nudge goes before
    a suppression, and a firing starts only its own count anew.

    Args:
        alpha: weight of the past in the exponential mean, in [0, 1).
        suppress_threshold: lambda above which growth is suppressed.
        suppress_sustain: windows in a row that must lie above it.
        nudge_threshold: lambda above which the anchor is nudged down.
        nudge_sustain: windows in a row that must lie above it.
        nudge_factor: factor of the nudge.
    """

    def __init__(
        self,
        alpha: float = 0.9,
        suppress_threshold: float = 1e-3,
        suppress_sustain: int = 3,
        nudge_threshold: float = 1e-2,
        nudge_sustain: int = 3,
        nudge_factor: float = 0.5,
    ) -> None:
        if not 0.0 <= alpha < 1.0:
            raise ConfigError(f"alpha is {alpha}; it must lie in [0, 1)")
        if min(suppress_sustain, nudge_sustain) < 1:
            raise ConfigError(f"sustain is {min(suppress_sustain, nudge_sustain)}; it must be at least 1")
        self.alpha = alpha
        self.suppress_threshold = _number("suppress_threshold", suppress_threshold)
        self.suppress_sustain = suppress_sustain
        self.nudge_threshold = _number("nudge_threshold", nudge_threshold)
        self.nudge_sustain = nudge_sustain
        self.nudge_factor = _number("nudge_factor", nudge_factor)
        self.seen = MsfState()

    def report(self, report: DivergenceReport, k_used: int, k_max: int) -> Verdict:  # noqa: ARG002
        """Judge one window by the smoothed growth rate of D; without a new rate the last one stands."""
        divergence = report.max_relative_delta
        measurable = DIVERGENCE_FLOOR < divergence < math.inf
        previous, self.seen.previous = self.seen.previous, divergence if measurable else None
        self.seen.lambda_raw = None
        if measurable and previous is not None and k_max > 0:
            self._smooth(math.log(divergence / previous) / k_max)
        rate = self.seen.lambda_ema
        return Verdict.stable() if rate is None else self._judge(rate)

    def _smooth(self, rate: float) -> None:
        self.seen.lambda_raw = rate
        self.seen.mean = self.alpha * self.seen.mean + (1.0 - self.alpha) * rate
        self.seen.bias *= self.alpha

    def _judge(self, rate: float) -> Verdict:
        seen = self.seen
        seen.suppress_streak = seen.suppress_streak + 1 if rate > self.suppress_threshold else 0
        seen.nudge_streak = seen.nudge_streak + 1 if rate > self.nudge_threshold else 0
        if seen.nudge_streak >= self.nudge_sustain:
            seen.nudge_streak = 0
            return Verdict.nudge_down(self.nudge_factor)
        if seen.suppress_streak >= self.suppress_sustain:
            seen.suppress_streak = 0
            return Verdict.suppress_growth()
        return Verdict.stable()

    def telemetry(self) -> dict[str, float]:
        """Return `lambda_raw` of the last window and `lambda_ema`, where there is one."""
        figures = {"lambda_raw": self.seen.lambda_raw, "lambda_ema": self.seen.lambda_ema}
        return {name: figure for name, figure in figures.items() if figure is not None}

    def reset(self) -> None:
        """Forget every window."""
        self.seen = MsfState()

    def state_dict(self) -> dict[str, Any]:
        """Return what was seen, as plain values."""
        return asdict(self.seen)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from another guard's `state_dict`."""
        self.seen = MsfState(**state)


def _number(name: str, value: float) -> float:
    if math.isnan(value):
        raise ConfigError(f"{name} is {value}; it must be a number")
    return value
