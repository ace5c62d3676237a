"""What one rank measured in one window, and how all ranks' measurements become the controller's report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from elche.errors import ConfigError
from elche.policy.cadence import WindowReport


class SlotReport(NamedTuple):
    """One slot's measurements in one window; a tuple, since every rank makes one per slot and window.

    Attributes:
        steps: batches done.
        samples: samples in them.
        wall_ms: computing time of all batches.
        first_batch_ms: computing and data time of the window's first batch.
        delivered_ms: computing and data time of the others; they are the delivered samples.
        loss_sum: sum of samples * loss over the batches whose loss was given and is finite.
        loss_samples: samples in those batches.
    """

    steps: int = 0
    samples: int = 0
    wall_ms: float = 0.0
    first_batch_ms: float = 0.0
    delivered_ms: float = 0.0
    loss_sum: float = 0.0
    loss_samples: int = 0

    @property
    def delivered_batches(self) -> int:
        """Batches in `delivered_ms`: all but the first."""
        return max(0, self.steps - 1)

    @property
    def fill_ms(self) -> float:
        """What the first batch took longer than the mean of the others; 0.0 where there are none."""
        if not self.delivered_batches:
            return 0.0
        return max(0.0, self.first_batch_ms - self.delivered_ms / self.delivered_batches)

    def to_row(self) -> list[float]:
        """Return the `NUM_FIELDS` floats in which ranks exchange a report."""
        return [*map(float, self)]

    @classmethod
    def from_row(cls, row: Sequence[float]) -> SlotReport:
        """Return the report that `to_row` made into this row.

        Args:
            row: `NUM_FIELDS` floats.

        Returns:
            The report.

        Raises:
            ConfigError: the row has another length.
        """
        if len(row) != NUM_FIELDS:
            raise ConfigError(f"row: {len(row)} floats, not {NUM_FIELDS}")
        steps, samples, wall_ms, first_batch_ms, delivered_ms, loss_sum, loss_samples = row
        return cls(
            int(steps), int(samples), wall_ms, first_batch_ms, delivered_ms, loss_sum, int(loss_samples)
        )


NUM_FIELDS = len(SlotReport._fields)
"""Floats in a `SlotReport`'s row."""


class WindowLedger:
    """Adds up one rank's batches, window after window.

    Example:
        >>> ledger = WindowLedger()
        >>> ledger.record(batch_ms=10.0, data_ms=5.0, samples=8)
        >>> ledger.record(batch_ms=10.0, data_ms=1.0, samples=8)
        >>> report = ledger.close()
        >>> report.wall_ms, report.delivered_ms, report.fill_ms
        (20.0, 11.0, 4.0)
    """

    def __init__(self) -> None:
        self._batches: list[tuple[float, float, int, float | None]] = []
        self._excluded_ms = 0.0

    def record(self, batch_ms: float, data_ms: float, samples: int, loss: float | None = None) -> None:
        """Add a batch.

        Args:
            batch_ms: from having the batch to the end of its accumulate.
            data_ms: from asking for the batch to having it.
            samples: samples in the batch.
            loss: mean loss over them; None where it is not known. One that is not finite is left out.
        """
        self._batches.append((max(0.0, batch_ms - self._excluded_ms), data_ms, samples, loss))
        self._excluded_ms = 0.0

    def exclude(self, ms: float) -> None:
        """Take a callback's time off the batch in which it ran: the one recorded next.

        Args:
            ms: how long the callback took, within that batch's `batch_ms`, which never falls below 0.
        """
        self._excluded_ms += ms

    def close(self) -> SlotReport:
        """Return the window's report and begin the next window."""
        batches = self._batches
        self._batches, self._excluded_ms = [], 0.0
        total_ms = [batch_ms + data_ms for batch_ms, data_ms, _, _ in batches]
        losses = [
            (samples, loss) for _, _, samples, loss in batches if loss is not None and math.isfinite(loss)
        ]
        return SlotReport(
            steps=len(batches),
            samples=sum(samples for _, _, samples, _ in batches),
            wall_ms=sum(batch_ms for batch_ms, _, _, _ in batches),
            first_batch_ms=sum(total_ms[:1]),
            delivered_ms=sum(total_ms[1:]),
            loss_sum=sum(samples * loss for samples, loss in losses),
            loss_samples=sum(samples for samples, _ in losses),
        )


def window_report(reports: Sequence[SlotReport], living: Sequence[bool], sync_ms: float) -> WindowReport:
    """Assemble the controller's report from every slot's.

    The report is coherent when every living slot that moved has a delivered sample, a time above 0 over
    at least one batch: only then may speeds be compared with data time included.

    Args:
        reports: one per slot; a dead slot's is ignored.
        living: which slots live; the dead report zeros.
        sync_ms: what the window before took to reduce and agree, the maximum over the living ranks.

    Returns:
        The report, the same on all ranks that call this with the same numbers.

    Raises:
        ConfigError: `reports` and `living` differ in length.
    """
    if len(reports) != len(living):
        raise ConfigError(f"reports: {len(reports)} for {len(living)} slots")
    reports = [report if lives else SlotReport() for report, lives in zip(reports, living, strict=True)]
    return WindowReport(
        wall_ms=[report.wall_ms for report in reports],
        steps=[report.steps for report in reports],
        delivered_ms=[report.delivered_ms for report in reports],
        delivered_batches=[report.delivered_batches for report in reports],
        fill_ms=[report.fill_ms for report in reports],
        delivered_coherent=all(report.delivered_ms > 0 for report in reports if report.steps),
        sync_ms=sync_ms,
    )
