"""The batches of some sample positions, numbered through without a list of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from elche.errors import ConfigError

Range = tuple[int, int]
"""Half-open sample positions, `start <= position < stop`."""


class Pieces:
    """Positions cut into batches of one size; the last one of each piece may be shorter.

    Args:
        ranges: the pieces, sorted and apart from each other.
        batch_size: samples in a batch.

    Attributes:
        ranges: the same.
        num_batches: how many batches they make; numbers run from 0 through all pieces.

    Example:
        >>> Pieces([(0, 5), (8, 10)], 2).batches(1, 4)
        [(2, 4), (4, 5), (8, 10)]
    """

    ranges: list[Range]
    num_batches: int

    def __init__(self, ranges: Sequence[Range], batch_size: int) -> None:
        self.ranges = list(ranges)
        self._batch_size = batch_size
        sizes = (-(-(stop - start) // batch_size) for start, stop in self.ranges)
        self._first_batch = list(accumulate(sizes, initial=0))
        self.num_batches = self._first_batch[-1]

    def positions(self, first: int, last: int) -> Iterator[Range]:
        """Yield the positions of the batches first <= number < last, one range for each piece they are in."""
        piece = bisect_right(self._first_batch, first) - 1
        while first < last:
            start, stop = self.ranges[piece]
            number, next_number = self._first_batch[piece : piece + 2]
            begin = start + (first - number) * self._batch_size
            yield begin, min(start + (last - number) * self._batch_size, stop)
            first, piece = next_number, piece + 1

    def batches(self, first: int, last: int) -> list[Range]:
        """Return the batches first <= number < last, one range each."""
        batches: list[Range] = []
        size = self._batch_size
        for begin, end in self.positions(first, last):
            whole = end - (end - begin) % size
            batches += [(start, start + size) for start in range(begin, whole, size)]
            if whole < end:
                batches.append((whole, end))
        return batches


def merged(ranges: Sequence[Range], num_samples: int) -> list[Range]:
    """Sort and join ranges that a caller gave, after checking that they are part of the epoch, each once.

    Args:
        ranges: the caller's.
        num_samples: length of the epoch.

    Returns:
        The same positions.

    Raises:
        ConfigError: a range leaves the epoch, or a position is in two of them.
    """
    for start, stop in ranges:
        if not 0 <= start <= stop <= num_samples:
            raise ConfigError(f"uncovered: ({start}, {stop}) is no range within 0..{num_samples}")
    ordered = sorted((start, stop) for start, stop in ranges if start < stop)
    for (_, stop), (start, _) in pairwise(ordered):
        if start < stop:
            raise ConfigError(f"uncovered: position {start} is in two ranges")
    return joined(ordered)


def joined(ranges: Sequence[Range]) -> list[Range]:
    """Join each range to the one before where it goes on from it; their order stays."""
    runs: list[Range] = []
    for start, stop in ranges:
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], stop)
        else:
            runs.append((start, stop))
    return runs
