"""Who anchors the cadence, and how many batches each slot gets for its speed: pure functions.

Loops over slots are comprehensions without calls: at 16,384 slots a call per slot costs more than the rest.
Counts are rounded half up by int(x + 0.5), because round() goes to the even neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

COHORT_BAND = 0.15
DOMINANCE_MARGIN = 0.10
MAX_SPEED_RATIO = 64.0
DEAD_ZONE_PERCENT = 5
SAME_SPEED_MS = 1e-6
ALL_BATCHES = 2.0**53  # more than any count


def elect(smoothed_ms: Sequence[float], anchor_rank: int | None) -> int | None:
    """Choose the anchor rank: one of the slowest; the present one stays unless another is clearly slower.

    Args:
        smoothed_ms: per slot its ms per batch, 0.0 without a reading.
        anchor_rank: the present anchor rank.

    Returns:
        The slot; the present one when no slot has a reading.
    """
    slowest_ms = max(smoothed_ms)
    if slowest_ms <= 0.0:
        return anchor_rank
    bound_ms = slowest_ms * (1.0 - COHORT_BAND)
    candidates = [slot for slot, ms in enumerate(smoothed_ms) if ms >= bound_ms]
    if anchor_rank is None or len(candidates) == 1 or smoothed_ms[anchor_rank] < bound_ms:
        return candidates[0]
    if slowest_ms > smoothed_ms[anchor_rank] * (1.0 + DOMINANCE_MARGIN):
        return max(reversed(candidates), key=smoothed_ms.__getitem__)  # of equals the last
    return anchor_rank


def proportional_counts(anchor: int, slow_ms: float, smoothed_ms: Sequence[float]) -> list[int]:
    """Return the batches each slot does while one of `slow_ms` does `anchor`; an unknown speed gets `anchor`.

    count = max(1, round(anchor * min(slow_ms / ms, 64)))

    Args:
        anchor: batches of the anchor rank.
        slow_ms: ms per batch of the anchor rank.
        smoothed_ms: ms per batch of each slot.

    Returns:
        Per slot its batches.

    Example:
        >>> proportional_counts(10, 4.0, [1.0, 4.0, 0.0])
        [40, 10, 10]
    """
    near, limit = SAME_SPEED_MS, MAX_SPEED_RATIO
    return [
        anchor
        if ms == 0.0 or -near < ms - slow_ms < near
        else int(anchor * (ratio if (ratio := slow_ms / ms) < limit else limit) + 0.5) or 1
        for ms in smoothed_ms
    ]


def spreads_past(max_batch_diff: int, anchor: int, smoothed_ms: Sequence[float]) -> bool:
    """Return whether the fastest slot would lead the `anchor` batches of the slowest by more than that."""
    known_ms = [ms for ms in smoothed_ms if ms > 0.0]
    # round(fastest) > anchor + max_batch_diff, without an int() that fails on an infinite ratio.
    return bool(known_ms) and anchor * max(known_ms) / min(known_ms) + 0.5 >= anchor + max_batch_diff + 1


def missed_batches(slack_ms: Sequence[float], smoothed_ms: Sequence[float]) -> list[int]:
    """Return the batches each slot misses during `slack_ms` of other work, 0 where its speed is unknown."""
    return [
        math.ceil(min(slack / ms, ALL_BATCHES)) if slack > 0.0 and ms > 0.0 else 0
        for slack, ms in zip(slack_ms, smoothed_ms, strict=True)
    ]


def damped(
    counts: Sequence[int], targets: Sequence[int], missed: Sequence[int] | None, max_step: int | None
) -> list[int]:
    """Move each count to its target if that is more than 5 % away, or batches are missed on purpose.

    Args:
        counts: per slot its present batches.
        targets: per slot the batches it should have.
        missed: per slot the batches taken off the target for other work, if any slot has such.
        max_step: batches by which a count may move, if there is a bound.

    Returns:
        The new counts.
    """
    moved = [
        target if abs(target - count) * 100 > count * DEAD_ZONE_PERCENT else count
        for count, target in zip(counts, targets, strict=True)
    ]
    if missed is not None:
        moved = [target if gone else new for new, target, gone in zip(moved, targets, missed, strict=True)]
    if max_step is None:
        return moved
    return [
        max(1, count - max_step, min(count + max_step, new)) for count, new in zip(counts, moved, strict=True)
    ]


def scaled(counts: Sequence[int], max_total: int) -> list[int]:
    """Scale counts down to a sum of about `max_total`: each to the batch below, at least to 1."""
    scale = max_total / sum(counts)
    return [int(count * scale) or 1 for count in counts]


def capped(counts: Sequence[int], max_total: int) -> list[int]:
    """Scale counts down to a window cap; what the scaling leaves goes to the largest, the last of equals.

    Args:
        counts: per slot its batches, more than `max_total` in sum.
        max_total: the cap.

    Returns:
        Per slot its batches; `max_total` in sum, or more where the floor of 1 batch each asks for it.

    Example:
        >>> capped([40, 64, 51], 50)
        [12, 22, 16]
    """
    fitted = scaled(counts, max_total)
    largest = max(range(len(fitted)), key=lambda slot: (fitted[slot], slot))
    fitted[largest] += max(0, max_total - sum(fitted))
    return fitted


def clamped(counts: Sequence[int], max_total: int) -> list[int]:
    """Scale counts down to a bound; what the scaling leaves goes to the first slots, one each.

    Args:
        counts: per slot its batches.
        max_total: the bound.

    Returns:
        Per slot its batches; at most `max_total` in sum, or more where the floor of 1 batch each asks for it.

    Example:
        >>> clamped([40, 64, 51], 50)
        [13, 21, 16]
    """
    if sum(counts) <= max_total:
        return list(counts)
    fitted = scaled(counts, max_total)
    rest = max_total - sum(fitted)
    return [count + (slot < rest) for slot, count in enumerate(fitted)]
