"""The batch counts of the next window: proportional to speed, damped, capped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from elche.errors import ConfigError
from elche.policy import balance
from elche.policy.checks import at_least

SHARE_WINDOW_CAP = 10


class BatchCounts:
    """Per slot its batches in the next window, and what the last ten windows were.

    Args:
        counts: per slot its batches in the first window.
        max_batch_diff: batches by which a count may move per window; None is no bound.
        max_total: bound of the sum; 0 is none.

    Attributes:
        counts: per slot its batches; replaced by every `recompute`, never changed in place.
        history: the counts of up to ten windows, the oldest first.
        slack_ms: per slot time to keep free, consumed by the next `recompute`.
        cap_binds: whether `max_total` has cut the counts.
    """

    counts: list[int]
    history: list[list[int]]
    slack_ms: list[float]
    cap_binds: bool

    def __init__(self, counts: Sequence[int], *, max_batch_diff: int | None, max_total: int) -> None:
        self.counts = list(counts)
        at_least("max_batch_diff", max_batch_diff or 0, 0)
        self.max_batch_diff = max_batch_diff
        self.max_total = at_least("max_total_batches", max_total, 0)
        self.cap_binds = False
        self.history = []
        self.slack_ms = [0.0] * len(self.counts)

    def expect_ratio(self, anchor: int, slow: int, ratio: float) -> None:
        """Set the counts for slots that are all `ratio` times as fast as the slot `slow`, or as fast."""
        if not math.isfinite(anchor * ratio):
            raise ConfigError(f"the ratio of speed_ratio is {ratio}; it must be finite")
        self.counts = [int(anchor * max(1.0, ratio) + 0.5)] * len(self.counts)
        self.counts[slow] = anchor

    def recompute(
        self, anchor: int, slow_ms: float, smoothed_ms: Sequence[float], *, calibrated: bool
    ) -> None:
        """Set the counts from the speeds.

        Args:
            anchor: batches of the anchor rank.
            slow_ms: ms per batch of the anchor rank.
            smoothed_ms: ms per batch of each slot.
            calibrated: whether the present counts were measured, so that they are worth keeping.
        """
        counts = balance.proportional_counts(anchor, slow_ms, smoothed_ms)
        missed = balance.missed_batches(self.slack_ms, smoothed_ms) if any(self.slack_ms) else None
        if missed is not None:
            counts = [max(1, count - gone) for count, gone in zip(counts, missed, strict=True)]
        if calibrated:
            counts = balance.damped(self.counts, counts, missed, self.max_batch_diff)
        self.cap_binds = 0 < self.max_total < sum(counts)
        self.counts = balance.capped(counts, self.max_total) if self.cap_binds else counts
        self.slack_ms = [0.0] * len(counts)

    def remember(self) -> None:
        """Add the counts to the history."""
        self.history = [*self.history, self.counts][-SHARE_WINDOW_CAP:]

    def recent_share(self) -> list[float]:
        """Return per slot its fraction of the history's batches; of the counts' while there is no history."""
        sums = [sum(counts) for counts in zip(*(self.history or [self.counts]), strict=True)]
        total = sum(sums)
        return [batches / total for batches in sums]

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the settings, as plain values."""
        return {
            "counts": list(self.counts),
            "history": [list(counts) for counts in self.history],
            "slack_ms": list(self.slack_ms),
            "max_total": self.max_total,
            "cap_binds": self.cap_binds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from another's `state_dict`."""
        self.counts = list(state["counts"])
        self.history = [list(counts) for counts in state["history"]]
        self.slack_ms = list(state["slack_ms"])
        self.max_total, self.cap_binds = state["max_total"], state["cap_binds"]
