"""Which samples, to whom: one epoch's batches dealt in windows, the same on every rank without a message.

A sample is named by its position in the epoch's permutation. A pool cuts the positions it has to cover into
batches once; from then on only a batch's owner may change, never its samples. So no position is lost or
dealt twice, whatever slots die, join or change their speed, and nothing grows with the number of samples.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heapreplace
from itertools import accumulate, pairwise

from elche.errors import ConfigError, UsageError
from elche.policy.apportion import largest_remainder, window_shares

Range = tuple[int, int]
"""Half-open sample positions, `start <= position < stop`."""


class EpochPool:
    """The batches of one epoch, dealt window by window.

    A slot takes from the front of its own span, so that a loader may prefetch ahead in it; when that is
    used up, from the tail of the span with most left. What a lost slot gave back is dealt before all else.
    A wrong argument raises ConfigError and changes nothing: a number out of bounds, another length than
    `world_size`, counts without one above 0 on a living slot.

    Example:
        >>> pool = EpochPool(num_samples=20, batch_size=4, world_size=2)
        >>> pool.deal([2, 1])
        (((0, 4), (4, 8)), ((12, 16),))
        >>> pool.give_back([1])
        ((12, 16),)
        >>> pool.commit()
        >>> pool.uncovered()
        ((8, 20),)
        >>> pool.deal([2, 1])
        (((12, 16), (8, 12)), ((16, 20),))

    Attributes:
        num_batches: how many batches this pool covers in all.
        remaining: how many of them are not dealt, those given back included.
    """

    num_batches: int
    remaining: int

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        world_size: int,
        *,
        drop_last: bool = False,
        uncovered: Sequence[Range] | None = None,
    ) -> None:
        """Cut an epoch, or what is left of one, into batches.

        Args:
            num_samples: length of the epoch's permutation.
            batch_size: samples in a batch; the last one before a gap or the end may be shorter.
            world_size: number of slots.
            drop_last: leave out the last `num_samples % batch_size` positions.
            uncovered: what is left of an epoch, as `uncovered()` of another pool gave it; that pool may
                have had another world size. None: the whole epoch.
        """
        _check_at_least("num_samples", num_samples, 0)
        _check_at_least("batch_size", batch_size, 1)
        _check_at_least("world_size", world_size, 1)
        self._batch_size = batch_size
        self._world_size = world_size
        ranges = _merged([(0, num_samples)] if uncovered is None else uncovered, num_samples)
        end = num_samples - num_samples % batch_size if drop_last else num_samples
        self._set_pieces([(start, min(stop, end)) for start, stop in ranges if start < min(stop, end)])
        self.num_batches = self.remaining = self._first_batch[-1]
        self._front = [0] * world_size  # a slot's span is the batches front <= number < back
        self._back = [0] * world_size
        self._spans_assigned = False
        self._returned: deque[Range] = deque()
        self._window: list[
            list[Range]
        ] = []  # dealt and not committed, by slot; empty while no window is open

    @property
    def exhausted(self) -> bool:
        """Whether every batch is in a committed window."""
        return not self.remaining and not any(self._window)

    def assign_spans(self, counts: Sequence[int], living: Sequence[bool] | None = None) -> None:
        """Give each slot a contiguous span of what is not dealt yet, in proportion to its count.

        The first `deal` does it unasked. Later calls follow a changed schedule or membership, at the price
        of what was prefetched. Ranges given back belong to no span.

        Args:
            counts: batches per window of each slot.
            living: which slots live; None: all.
        """
        self._assign(self._counts_of_living(counts, living))

    def deal(
        self,
        counts: Sequence[int],
        *,
        living: Sequence[bool] | None = None,
        ms_per_batch: Sequence[float] | None = None,
    ) -> tuple[tuple[Range, ...], ...]:
        """Deal the next window: `window_shares` says how many batches, the spans which.

        Args:
            counts: batches per window of each slot.
            living: which slots live; None: all. A dead slot gets nothing.
            ms_per_batch: measured time of a batch on each slot, 0.0 where there is none.

        Returns:
            Each slot's batches, one range a batch. All empty, and no window is open, when all is covered.

        Raises:
            UsageError: the window before is not committed.
        """
        if self._window:
            raise UsageError("deal: the window dealt before is not committed")
        counts = self._counts_of_living(counts, living)
        if ms_per_batch is not None:
            self._check_length("ms_per_batch", ms_per_batch)
        if not self.remaining:
            return ((),) * self._world_size
        if not self._spans_assigned:
            self._assign(counts)
        shares = window_shares(self.remaining, counts, ms_per_batch)
        window = [self._take_own(slot, share) for slot, share in enumerate(shares)]
        self._steal(window, shares)
        self.remaining -= sum(shares)
        self._window = window
        return tuple(map(tuple, window))

    def peek(self, slot: int, num_batches: int) -> tuple[Range, ...]:
        """Return the front of a slot's span: what it gets next, unless ranges were given back or stolen.

        Args:
            slot: whose span.
            num_batches: how far to look; less comes back where the span is shorter.

        Returns:
            At most `num_batches` batches; none before spans are assigned.
        """
        self._check_slot(slot)
        _check_at_least("num_batches", num_batches, 0)
        front = self._front[slot]
        return tuple(self._batches(front, min(front + num_batches, self._back[slot])))

    def commit(self) -> None:
        """Count the dealt window as covered, but for what was given back.

        Raises:
            UsageError: no window is dealt.
        """
        if not self._window:
            raise UsageError("commit: no window is dealt")
        self._window = []

    def give_back(self, slots: Sequence[int]) -> tuple[Range, ...]:
        """Take these slots' batches out of the dealt window and put them in front of everything else.

        Args:
            slots: the slots that were lost in this window.

        Returns:
            The batches given back, by position; none where no window is dealt.
        """
        for slot in slots:
            self._check_slot(slot)
        lost: list[Range] = []
        for slot in slots if self._window else ():
            lost += self._window[slot]
            self._window[slot] = []
        lost.sort()
        self._returned.extendleft(reversed(lost))
        self.remaining += len(lost)
        return tuple(lost)

    def uncovered(self) -> tuple[Range, ...]:
        """Return the positions in no committed window, merged and sorted: what a checkpoint saves."""
        dealt = [batch for batches in self._window for batch in batches]
        return tuple(_joined(sorted([*dealt, *self._returned, *self._undealt()])))

    def _assign(self, counts: Sequence[int]) -> None:
        self._set_pieces(_joined(sorted(self._undealt())) if self._spans_assigned else self._pieces)
        self._back = list(accumulate(largest_remainder(self._first_batch[-1], counts)))
        self._front = [0, *self._back[:-1]]
        self._spans_assigned = True

    def _set_pieces(self, pieces: list[Range]) -> None:
        """Number the batches of `pieces` through: piece i begins with batch `_first_batch[i]`."""
        self._pieces = pieces
        sizes = (-(-(stop - start) // self._batch_size) for start, stop in pieces)
        self._first_batch = list(accumulate(sizes, initial=0))

    def _undealt(self) -> Iterator[Range]:
        """Yield the positions in spans, or all of them while there are no spans."""
        if not self._spans_assigned:
            yield from self._pieces
        for front, back in zip(self._front, self._back, strict=True):
            yield from self._positions(front, back)

    def _positions(self, first: int, last: int) -> Iterator[Range]:
        """Yield the positions of the batches first <= number < last, one range for each piece they are in."""
        piece = bisect_right(self._first_batch, first) - 1
        while first < last:
            start, stop = self._pieces[piece]
            number, next_number = self._first_batch[piece : piece + 2]
            begin = start + (first - number) * self._batch_size
            yield begin, min(start + (last - number) * self._batch_size, stop)
            first, piece = next_number, piece + 1

    def _batches(self, first: int, last: int) -> list[Range]:
        batches: list[Range] = []
        size = self._batch_size
        for begin, end in self._positions(first, last):
            whole = end - (end - begin) % size
            batches += [(start, start + size) for start in range(begin, whole, size)]
            if whole < end:
                batches.append((whole, end))
        return batches

    def _take_own(self, slot: int, share: int) -> list[Range]:
        returned = [self._returned.popleft() for _ in range(min(share, len(self._returned)))]
        front = self._front[slot]
        self._front[slot] = min(front + share - len(returned), self._back[slot])
        return returned + self._batches(front, self._front[slot])

    def _steal(self, window: list[list[Range]], shares: Sequence[int]) -> None:
        """Fill up the slots that are short of their share, after all have taken from their own spans."""
        short = [slot for slot, share in enumerate(shares) if len(window[slot]) < share]
        if not short:
            return
        spans = [(self._front[slot] - self._back[slot], slot) for slot in range(self._world_size)]
        heapify(spans)  # the longest first: lengths are negative; a window never exceeds what remains
        for slot in short:
            for _ in range(shares[slot] - len(window[slot])):
                length, victim = spans[0]
                heapreplace(spans, (length + 1, victim))
                self._back[victim] -= 1
                window[slot] += self._batches(self._back[victim], self._back[victim] + 1)

    def _counts_of_living(self, counts: Sequence[int], living: Sequence[bool] | None) -> list[int]:
        self._check_length("counts", counts)
        if living is not None:
            self._check_length("living", living)
            counts = [count if lives else 0 for count, lives in zip(counts, living, strict=True)]
        if min(counts) < 0:
            raise ConfigError(f"counts: {min(counts)} is below 0")
        if not any(counts):
            raise ConfigError("counts: no living slot has a count above 0")
        return list(counts)

    def _check_length(self, name: str, values: Sequence[object]) -> None:
        if len(values) != self._world_size:
            raise ConfigError(f"{name}: {len(values)} values for {self._world_size} slots")

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self._world_size:
            raise ConfigError(f"slot {slot} is outside 0..{self._world_size - 1}")


def _check_at_least(name: str, value: int, bound: int) -> None:
    if value < bound:
        raise ConfigError(f"{name}: {value} is below {bound}")


def _merged(ranges: Sequence[Range], num_samples: int) -> list[Range]:
    """Sort and join ranges that a caller gave, after checking that they are part of the epoch, each once."""
    for start, stop in ranges:
        if not 0 <= start <= stop <= num_samples:
            raise ConfigError(f"uncovered: ({start}, {stop}) is no range within 0..{num_samples}")
    ordered = sorted((start, stop) for start, stop in ranges if start < stop)
    for (_, stop), (start, _) in pairwise(ordered):
        if start < stop:
            raise ConfigError(f"uncovered: position {start} is in two ranges")
    return _joined(ordered)


def _joined(ordered: Sequence[Range]) -> list[Range]:
    """Join sorted ranges that touch."""
    joined: list[Range] = []
    for start, stop in ordered:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined
