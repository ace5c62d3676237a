"""How many batches each slot gets in a window.

Until an epoch's end that is the schedule's count. The last window deals what is left, to exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace


def window_shares(left: int, counts: Sequence[int], ms_per_batch: Sequence[float] | None = None) -> list[int]:
    """Return the batches of each slot in the next window of an epoch.

    While more than `sum(counts)` are left, a share is the slot's count. The last window deals all that is
    left, by largest remainder or, where that ends sooner, by least makespan

        makespan = max_s share_s * ms_s,        share_s <= count_s.

    A lone batch has no delivered sample: a slot that could do more hands it to a peer that has some already
    and has room, the one that then ends first. A slot whose count is 1, as in policy "sync", keeps its batch.
    A count is never exceeded: caps and callbacks that are due have shaped it.

    Args:
        left: batches of the epoch that are not dealt.
        counts: batches per window of each slot, 0 for the dead; above 0 in sum.
        ms_per_batch: measured time of a batch on each slot. Where one is missing (None, 0 or not finite on
            a slot with a count), slots are taken to be as fast as their counts say.

    Returns:
        One share per slot; `min(left, sum(counts))` in sum.

    Example:
        >>> window_shares(500, [71, 18, 15])
        [71, 18, 15]
        >>> window_shares(72, [71, 18, 15])
        [49, 13, 10]
        >>> window_shares(2, [71, 18, 15])
        [2, 0, 0]
    """
    if left > sum(counts):
        return list(counts)
    shares = largest_remainder(left, counts)
    if ms_per_batch is None or not _measured(counts, ms_per_batch):
        return _without_lone_batches(shares, counts, [1 / count if count else 0.0 for count in counts])
    least = least_makespan(left, counts, ms_per_batch)
    deals = [_without_lone_batches(deal, counts, ms_per_batch) for deal in (shares, least)]
    return min(deals, key=lambda deal: _makespan(deal, ms_per_batch))


def largest_remainder(total: int, weights: Sequence[int]) -> list[int]:
    """Split `total` in proportion to integer weights, to exactly its sum; ties go to the lowest slot.

    Args:
        total: how many to split, at least 0.
        weights: at least 0 each, above 0 in sum.

    Returns:
        One part per weight, each within 1 of `total * weight / sum(weights)`.

    Example:
        >>> largest_remainder(10, [1, 1, 2])
        [3, 2, 5]
    """
    sum_of_weights = sum(weights)
    parts = [total * weight // sum_of_weights for weight in weights]
    missing = total - sum(parts)
    if missing:
        remainders = [total * weight % sum_of_weights for weight in weights]
        for slot in sorted(range(len(weights)), key=remainders.__getitem__, reverse=True)[:missing]:
            parts[slot] += 1
    return parts


def least_makespan(total: int, counts: Sequence[int], ms_per_batch: Sequence[float]) -> list[int]:
    """Split `total` so that the last slot ends as early as can be, none with more than its count.

    Batches move, one by one, from the slot that ends last to the one that would end first with it. When no
    move helps, each slot is full or would end no sooner with one more: no split is better. A slot that has
    given never takes, nor the other way, so each heap follows one end of a move only.

    Args:
        total: batches to split, at most `sum(counts)`.
        counts: the most each slot may get; above 0 in sum.
        ms_per_batch: time of a batch on each slot, above 0 where the count is.

    Returns:
        One part per slot.

    Example:
        >>> least_makespan(6, [6, 6], [10.0, 30.0])
        [5, 1]
    """
    shares = largest_remainder(total, counts)
    givers = [(-n * ms, slot) for slot, (n, ms) in enumerate(zip(shares, ms_per_batch, strict=True)) if n]
    takers = _takers(shares, counts, ms_per_batch, at_least=0)
    heapify(givers)
    while givers and takers and takers[0][0] < -givers[0][0]:
        giver = givers[0][1]
        shares[giver] -= 1
        heapreplace(givers, (-shares[giver] * ms_per_batch[giver], giver))
        _take(takers, shares, counts, ms_per_batch)
    return shares


def _without_lone_batches(
    shares: Sequence[int], counts: Sequence[int], ms_per_batch: Sequence[float]
) -> list[int]:
    """Let each slot with one batch, and a count above 1, hand it on; the slowest hands on first."""
    shares = list(shares)
    takers = _takers(shares, counts, ms_per_batch, at_least=1)
    lone = [slot for slot, share in enumerate(shares) if share == 1 < counts[slot]]
    for giver in sorted(lone, key=lambda slot: (ms_per_batch[slot], slot), reverse=True):
        if shares[giver] > 1:  # it has taken
            continue
        while takers and (takers[0][1] == giver or not shares[takers[0][1]]):
            heappop(takers)
        if takers:
            shares[giver] = 0
            _take(takers, shares, counts, ms_per_batch)
    return shares


def _takers(
    shares: Sequence[int], counts: Sequence[int], ms_per_batch: Sequence[float], at_least: int
) -> list[tuple[float, int]]:
    """Return a heap of (when it would end with one more batch, slot) of the slots that have room."""
    takers = [
        ((share + 1) * ms, slot)
        for slot, (share, count, ms) in enumerate(zip(shares, counts, ms_per_batch, strict=True))
        if at_least <= share < count
    ]
    heapify(takers)
    return takers


def _take(
    takers: list[tuple[float, int]], shares: list[int], counts: Sequence[int], ms_per_batch: Sequence[float]
) -> None:
    """Give the first taker one more batch."""
    taker = takers[0][1]
    shares[taker] += 1
    if shares[taker] < counts[taker]:
        heapreplace(takers, ((shares[taker] + 1) * ms_per_batch[taker], taker))
    else:
        heappop(takers)


def _measured(counts: Sequence[int], ms_per_batch: Sequence[float]) -> bool:
    return all(0 < ms < math.inf for count, ms in zip(counts, ms_per_batch, strict=True) if count)


def _makespan(shares: Sequence[int], ms_per_batch: Sequence[float]) -> float:
    return max((share * ms for share, ms in zip(shares, ms_per_batch, strict=True) if share), default=0.0)
