"""The meta-controller above `ElChe`: shrink the windows before a learning-rate drop shakes the replicas."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from elche.policy.records import Phase, Verdict

LR_WINDOW = 3
ANCHOR_WINDOW = 5
VERDICT_WINDOW = 5
CLIFF_DROP = 0.3  # relative, from one window to the next
CLIFF_BASE = 0.5
SETTLED_TREND = 0.1
FACTOR_MIN, FACTOR_MAX = 0.1, 0.95
PATTERN = {Phase.WARMUP: (5, 0.3), Phase.STABLE: (3, 0.5), Phase.MATURE: (2, 0.7)}  # (verdicts, base)


class LrMetaController:
    """Ask for shorter windows on a learning-rate cliff or a run of unstable verdicts.

    Each watcher that fires asks for f(base) = clamp(base - (1 - base) * anchor_trend, 0.1, 0.95): harder
    while the anchor still grows, softer once it already shrinks. Both together multiply. What is asked for
    goes through `ElChe.apply_verdict` before the guard's own verdict of the window.
    """

    def __init__(self) -> None:
        self.lrs: list[float] = []
        self.anchors: list[int] = []
        self.verdicts: list[str] = []

    def observe(self, lr: float, anchor: int, verdict: Verdict, phase: Phase) -> float | None:
        """Take in one window and return the factor of a nudge, or None.

        Args:
            lr: learning rate of the window's update.
            anchor: the controller's anchor, in batches.
            verdict: the guard's verdict on the window.
            phase: the controller's phase; in PROBE nothing is asked for.

        Returns:
            The factor for `Verdict.nudge_down`, in [0.1, 0.95], or None.
        """
        self.lrs = [*self.lrs, lr][-LR_WINDOW:]
        self.anchors = [*self.anchors, anchor][-ANCHOR_WINDOW:]
        self.verdicts = [*self.verdicts, verdict.kind][-VERDICT_WINDOW:]
        if phase == Phase.PROBE:
            return None
        factors = []
        if self._fell_off_cliff():
            factors.append(self._factor(CLIFF_BASE))
        length, base = PATTERN[phase]
        if len(self.verdicts) >= length and "stable" not in self.verdicts[-length:]:
            factors.append(self._factor(base))
        return _clamp(math.prod(factors)) if factors else None

    def _fell_off_cliff(self) -> bool:
        if len(self.lrs) < 2:
            return False
        before, now = self.lrs[-2:]
        return before > 0.0 and (before - now) / before > CLIFF_DROP

    def _factor(self, base: float) -> float:
        return _clamp(base - (1.0 - base) * self.anchor_trend)

    @property
    def anchor_trend(self) -> float:
        """How far the anchor lies above its recent mean, relative to it; 0 with fewer than two windows."""
        if len(self.anchors) < 2:
            return 0.0
        mean = sum(self.anchors) / len(self.anchors)
        return (self.anchors[-1] - mean) / mean if mean > 0 else 0.0

    @property
    def is_settled(self) -> bool:
        """Whether the anchor lies within 10 % of its recent mean."""
        return abs(self.anchor_trend) < SETTLED_TREND

    def state_dict(self) -> dict[str, Any]:
        """Return what was seen, as plain values: a joining rank loads it."""
        return {"lrs": list(self.lrs), "anchors": list(self.anchors), "verdicts": list(self.verdicts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from another controller's `state_dict`."""
        self.lrs, self.anchors = list(state["lrs"]), list(state["anchors"])
        self.verdicts = list(state["verdicts"])


def _clamp(factor: float) -> float:
    return max(FACTOR_MIN, min(FACTOR_MAX, factor))
