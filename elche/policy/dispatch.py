"""Which samples, to whom: one epoch's batches dealt in windows, the same on every rank without a message.

A sample is named by its position in the epoch's permutation. A pool cuts the positions it has to cover into
batches once; from then on only a batch's owner may change, never its samples. So no position is lost or
dealt twice, whatever slots die, join or change their speed, and nothing grows with the number of samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import accumulate
from typing import Any

from elche.errors import ConfigError, UsageError
from elche.policy.apportion import largest_remainder, window_shares
from elche.policy.pieces import Pieces, Range, joined, merged

__all__ = ["EpochPool", "Range"]


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
        ranges = merged([(0, num_samples)] if uncovered is None else uncovered, num_samples)
        end = num_samples - num_samples % batch_size if drop_last else num_samples
        ranges = [(start, min(stop, end)) for start, stop in ranges if start < min(stop, end)]
        self._pieces = Pieces(ranges, batch_size)
        self.num_batches = self.remaining = self._pieces.num_batches
        self._front = [0] * world_size  # a slot's span is the batches front <= number < back
        self._back = [0] * world_size
        self._spans_assigned = False
        self._returned: deque[Range] = deque()
        self._window: list[list[Range]] = []  # dealt and not committed, by slot; empty while none is open

    @property
    def dealt(self) -> tuple[tuple[Range, ...], ...]:
        """The open window's batches, by slot, without what was given back; all empty while none is open."""
        return tuple(map(tuple, self._window)) or ((),) * self._world_size

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
        return tuple(self._pieces.batches(front, min(front + num_batches, self._back[slot])))

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
        open_batches = [batch for batches in self._window for batch in batches]
        return tuple(joined(sorted([*open_batches, *self._returned, *self._undealt()])))

    def state_dict(self) -> dict[str, Any]:
        """Return the whole pool as plain values, the open window included: a joining rank loads it."""
        return {
            "world_size": self._world_size,
            "batch_size": self._batch_size,
            "num_batches": self.num_batches,
            "remaining": self.remaining,
            "pieces": list(map(list, self._pieces.ranges)),
            "front": list(self._front),
            "back": list(self._back),
            "spans_assigned": self._spans_assigned,
            "returned": list(map(list, self._returned)),
            "window": [list(map(list, batches)) for batches in self._window],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become, in place, the pool whose `state_dict` it is.

        Args:
            state: of a pool of the same world size and batch size.

        Raises:
            ConfigError: one of the two differs.
        """
        for name, own in (("world_size", self._world_size), ("batch_size", self._batch_size)):
            if state[name] != own:
                raise ConfigError(f"{name}: {state[name]} in the state, {own} in this pool")
        self.num_batches, self.remaining = state["num_batches"], state["remaining"]
        self._pieces = Pieces(_ranges(state["pieces"]), self._batch_size)
        self._front, self._back = list(state["front"]), list(state["back"])
        self._spans_assigned = state["spans_assigned"]
        self._returned = deque(_ranges(state["returned"]))
        self._window = list(map(_ranges, state["window"]))

    def _assign(self, counts: Sequence[int]) -> None:
        if self._spans_assigned:
            self._pieces = Pieces(joined(sorted(self._undealt())), self._batch_size)
        self._back = list(accumulate(largest_remainder(self._pieces.num_batches, counts)))
        self._front = [0, *self._back[:-1]]
        self._spans_assigned = True

    def _undealt(self) -> Iterator[Range]:
        """Yield the positions in spans, or all of them while there are no spans."""
        if not self._spans_assigned:
            yield from self._pieces.ranges
        for front, back in zip(self._front, self._back, strict=True):
            yield from self._pieces.positions(front, back)

    def _take_own(self, slot: int, share: int) -> list[Range]:
        returned = [self._returned.popleft() for _ in range(min(share, len(self._returned)))]
        front = self._front[slot]
        self._front[slot] = min(front + share - len(returned), self._back[slot])
        return returned + self._pieces.batches(front, self._front[slot])

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
                window[slot] += self._pieces.batches(self._back[victim], self._back[victim] + 1)

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


def _ranges(pairs: Sequence[Sequence[int]]) -> list[Range]:
    return [(start, stop) for start, stop in pairs]
