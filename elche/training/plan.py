"""What every slot does in one window: `optimizer.window`, for the curious."""

from __future__ import annotations

from dataclasses import dataclass

from elche.policy.dispatch import Range


@dataclass(frozen=True)
class Plan:
    """What every slot does in one window.

    Attributes:
        epoch: which pass over the dataset.
        index: number of the window, counted over the whole job.
        slot: this rank's.
        counts: batches by slot.
        ranges: by slot, each batch as [start, stop) positions in the epoch's permutation.
    """

    epoch: int
    index: int
    slot: int
    counts: tuple[int, ...]
    ranges: tuple[tuple[Range, ...], ...]

    @property
    def share(self) -> tuple[Range, ...]:
        """This rank's batches."""
        return self.ranges[self.slot]
