"""When a batch began and ended, on the device that did the work."""

from __future__ import annotations

import time
from typing import Protocol

import torch


class Mark(Protocol):
    """A moment; what it is made of only the clock knows."""


class HostClock:
    """Moments of the host: the device is the CPU, which is done when Python goes on."""

    def mark(self) -> Mark:
        """Return now."""
        return time.perf_counter()

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        """Return the milliseconds between two moments."""
        return 1e3 * (end - start)  # type: ignore[operator, no-any-return]


class CudaClock:
    """Moments of a CUDA stream: events, read when the window closes, so that no batch is waited for."""

    def mark(self) -> Mark:
        """Return the moment at which the stream will have done what it was given so far."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        """Return the milliseconds between two moments, once the stream has passed the second."""
        end.synchronize()  # type: ignore[attr-defined]
        return float(start.elapsed_time(end))  # type: ignore[attr-defined]


def clock_of(device: torch.device) -> HostClock | CudaClock:
    """Return the clock that tells when this device has done its work."""
    return CudaClock() if device.type == "cuda" else HostClock()
