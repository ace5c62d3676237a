"""What each slot's speed is believed to be: the trust windows and the death exception."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import truediv
from typing import Any

TRUST_WINDOW_CAP = 5


class TrustWindows:
    """The last five ms-per-batch readings of every slot, and their means.

    Rows run over the slots, the oldest reading first; a slot with fewer than five readings has zeros in its
    oldest rows. So one window of 16,384 slots is one list shifted, and the means are one pass at C speed.

    Args:
        world_size: number of slots.

    Attributes:
        smoothed_ms: per slot the mean of its readings in ms per batch, 0.0 without a reading.
        depths: per slot how many readings it has.
        zero_reports: per slot how many reports without a reading came in a row, at most five.
    """

    smoothed_ms: list[float]
    depths: list[int]
    zero_reports: list[int]

    def __init__(self, world_size: int) -> None:
        self.zero_reports = [0] * world_size
        self.seed([0.0] * world_size)

    def seed(self, means: Iterable[float]) -> None:
        """Forget the readings, not the zero reports; a positive mean becomes its slot's only reading."""
        newest = [float(mean) if mean > 0.0 else 0.0 for mean in means]
        self._rows = [[0.0] * len(newest) for _ in range(TRUST_WINDOW_CAP - 1)] + [newest]
        self.depths = [int(mean > 0.0) for mean in newest]
        self.smoothed_ms = list(newest)

    def push(self, wall_ms: Sequence[float], batches: Sequence[int]) -> None:
        """Take one report: a reading where batches > 0 and the wall is finite and > 0, else a zero report."""
        newest, silent = _readings(wall_ms, batches)
        dropped = self._rows.pop(0)
        self._rows.append(newest)
        depths, self.depths = self.depths, [depth + (depth < TRUST_WINDOW_CAP) for depth in self.depths]
        missed, self.zero_reports = self.zero_reports, [0] * len(newest)
        for slot in silent:
            self.zero_reports[slot] = min(missed[slot] + 1, TRUST_WINDOW_CAP)
            self.depths[slot] = depths[slot] if self.zero_reports[slot] < TRUST_WINDOW_CAP else 0
            if depths[slot]:
                self._shift_back(slot, dropped[slot])
        self._smooth()

    def _shift_back(self, slot: int, dropped: float) -> None:
        """Give a slot without a new reading its old ones back, or none when it has just died."""
        rows = self._rows
        for age in range(TRUST_WINDOW_CAP - 1, 0, -1):
            rows[age][slot] = rows[age - 1][slot] if self.depths[slot] else 0.0
        rows[0][slot] = dropped if self.depths[slot] else 0.0

    def _smooth(self) -> None:
        # From the oldest to the newest, as the conformance traces add: another order changes the last bit.
        self.smoothed_ms = [
            (a + b + c + d + e) / depth if depth else 0.0
            for a, b, c, d, e, depth in zip(*self._rows, self.depths, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return readings, depths and zero reports as plain values."""
        return {
            "rows": [list(row) for row in self._rows],
            "depths": list(self.depths),
            "zero_reports": list(self.zero_reports),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from another's `state_dict`."""
        self._rows = [list(row) for row in state["rows"]]
        self.depths = list(state["depths"])
        self.zero_reports = list(state["zero_reports"])
        self._smooth()


def _readings(wall_ms: Sequence[float], batches: Sequence[int]) -> tuple[list[float], list[int]]:
    """Return per slot its ms per batch, 0.0 without a reading, and the slots that have none."""
    if min(batches) > 0 and min(wall_ms) > 0.0 and all(map(math.isfinite, wall_ms)):
        return list(map(float, map(truediv, wall_ms, batches))), []
    heard = [n > 0 and wall > 0.0 and math.isfinite(wall) for wall, n in zip(wall_ms, batches, strict=True)]
    readings = [float(wall / n) if ok else 0.0 for wall, n, ok in zip(wall_ms, batches, heard, strict=True)]
    return readings, [slot for slot, ok in enumerate(heard) if not ok]
