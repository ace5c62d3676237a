"""A clock that shows each rank's emulated speed, so that plans do not depend on the machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import elche


class EmulatedClock:
    """Every batch of a rank takes its `ms`."""

    def __init__(self, ms: float) -> None:
        self._ms = ms

    def mark(self) -> None:
        return None

    def elapsed_ms(self, start: None, end: None) -> float:
        return self._ms


class SteadyTime(threading.local):
    """On rank r it is (r + 1) * 0.1 ms later at each look: so long take data, and a reduce."""

    seconds = 0.0

    def perf_counter(self) -> float:
        self.seconds += 1e-4 * (elche.rank() + 1)
        return self.seconds


@contextmanager
def emulated(ms: Sequence[float] | None) -> Iterator[None]:
    """Let rank r take `ms[r]` for a batch; None: leave the real clock."""
    if ms is None:
        yield
        return
    time = SimpleNamespace(perf_counter=SteadyTime().perf_counter)
    with (
        patch("elche.training.timing.clock_of", lambda device: EmulatedClock(ms[elche.rank()])),
        patch("elche.training.reduction.time", time),
        patch("elche.training.loader.time", time),
    ):
        yield
