"""Divergence guards: what the drift of the replicas says about the cadence.

Whoever watches the training answers a `DivergenceReport` with a `Verdict`; `ElChe.apply_verdict` is the
only place where a verdict takes effect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from elche.errors import ConfigError
from elche.policy.checks import at_least
from elche.policy.records import DivergenceReport, Verdict

__all__ = ["DivergenceReport", "Guard", "MsfGuard", "NoGuard", "TrendGuard", "Verdict"]

TREND_HISTORY = 5
DIVERGENCE_FLOOR = 1e-8  # a smaller divergence has no growth rate worth the name


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
        self.alpha = alpha
        self.suppress_threshold = _number("suppress_threshold", suppress_threshold)
        self.suppress_sustain = at_least("suppress_sustain", suppress_sustain, 1)
        self.nudge_threshold = _number("nudge_threshold", nudge_threshold)
        self.nudge_sustain = at_least("nudge_sustain", nudge_sustain, 1)
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
