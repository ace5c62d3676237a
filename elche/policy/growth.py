"""When windows may grow: only to meet the overhead target, and only while no detector objects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from elche.errors import ConfigError

OVERHEAD_MIN, OVERHEAD_MAX = 0.01, 0.50
GROWTH_REARM_STABLE = 5
GROWTH_STEP_CAP = 2.0
MAX_ANCHOR = 1000
STATE = ("enabled", "proposed", "stable_verdicts")


class Growth:
    """A proposal for a larger anchor, and the latch that a detector throws.

    Args:
        anchor: the anchor the user asked for.
        world_size: number of slots.
        overhead_target: fraction of a window its fixed cost may take, clamped to [0.01, 0.50].
        applicable: whether the anchor may grow at all.
        min_anchor: lower bound of a proposal (None: `anchor`), clamped to [1, max_anchor].
        max_anchor: upper bound of the anchor (None: 1000, or `anchor` if larger), lifted to 1.

    Attributes:
        enabled: False from a veto until five stable verdicts have come in a row.
        proposed: the larger anchor that the next stable verdict commits.
        stable_verdicts: stable verdicts in a row.
        fill_ms: per slot what its first batch took longer, staged for the next proposal.
    """

    enabled: bool
    proposed: int | None
    stable_verdicts: int
    fill_ms: list[float]

    def __init__(
        self,
        anchor: int,
        world_size: int,
        *,
        overhead_target: float,
        applicable: bool,
        min_anchor: int | None,
        max_anchor: int | None,
    ) -> None:
        if math.isnan(overhead_target):
            raise ConfigError(f"overhead_target is {overhead_target}; it must be a number")
        self.overhead_target = max(OVERHEAD_MIN, min(OVERHEAD_MAX, overhead_target))
        self.applicable = applicable
        self.max_anchor = max(1, max(MAX_ANCHOR, anchor) if max_anchor is None else max_anchor)
        self.min_anchor = max(1, min(self.max_anchor, anchor if min_anchor is None else min_anchor))
        self.enabled = True
        self.proposed = None
        self.stable_verdicts = 0
        self.fill_ms = [0.0] * world_size

    def propose(self, anchor: int, ms: float, fixed_ms: float) -> None:
        """Stage a larger anchor if the fixed cost of a window asks for one and nothing forbids it.

        Args:
            anchor: batches of the anchor rank per window.
            ms: its ms per batch.
            fixed_ms: what a window costs however long it is.
        """
        grown = grown_anchor(anchor, ms, fixed_ms, self.overhead_target)
        bounded = max(self.min_anchor, min(self.max_anchor, grown))
        allowed = self.applicable and self.enabled and anchor < min(grown, bounded)
        self.proposed = bounded if allowed else None

    def take_fill(self, slot: int) -> float:
        """Return the staged fill of one slot, at least 0, and clear that of all."""
        fill_ms, self.fill_ms = self.fill_ms[slot], [0.0] * len(self.fill_ms)
        return max(0.0, fill_ms)

    def stable(self) -> int | None:
        """Count a stable verdict and hand out the proposal, if there is one."""
        self.stable_verdicts += 1
        self.enabled = self.enabled or self.stable_verdicts >= GROWTH_REARM_STABLE
        proposed, self.proposed = self.proposed, None
        return proposed

    def veto(self) -> None:
        """Drop the proposal and make no other until the latch is re-armed."""
        self.enabled = False
        self.proposed = None
        self.stable_verdicts = 0

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the settings, as plain values."""
        return {**{name: getattr(self, name) for name in STATE}, "fill_ms": list(self.fill_ms)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from another's `state_dict`."""
        for name in STATE:
            setattr(self, name, state[name])
        self.fill_ms = list(state["fill_ms"])


def grown_anchor(anchor: int, ms: float, fixed_ms: float, overhead_target: float) -> int:
    """Return the anchor at which a window's fixed cost would meet the target; the same when it does already.

    overhead = fixed / (anchor * ms + fixed); the anchor grows by min(overhead / target, 2).

    Args:
        anchor: batches of the anchor rank per window.
        ms: its ms per batch.
        fixed_ms: what a window costs however long it is: the exchange and the first batch's fill.
        overhead_target: fraction of a window that the fixed cost may take.

    Returns:
        The anchor, rounded up; not bounded.

    Example:
        >>> grown_anchor(10, 10.0, 10.0, 0.05)
        19
    """
    overhead = fixed_ms / (anchor * ms + fixed_ms)
    if not overhead > overhead_target:  # also when an infinite cost makes it a NaN
        return anchor
    return math.ceil(anchor * min(overhead / overhead_target, GROWTH_STEP_CAP))
