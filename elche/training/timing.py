"""How long this rank's batches took, on the device that did the work."""

from __future__ import annotations

import time
from typing import Protocol

import torch
from torch import Tensor

from elche.policy.ledger import SlotReport, WindowLedger


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


class Stopwatch:
    """Measures the batches of a window; marks are read at its end, so that no batch waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._clock = clock_of(device)
        self._ledger = WindowLedger()
        self._begun: tuple[int, float, Mark] | None = None
        self._batches: list[tuple[int, float, Mark, Mark, float | Tensor | None]] = []

    def begin(self, samples: int, data_ms: float) -> None:
        """Note that the training loop has a batch from now on, for which it waited `data_ms`."""
        self._begun = samples, data_ms, self._clock.mark()

    def end(self, loss: float | Tensor | None) -> None:
        """Note that the batch's gradients are taken; `loss` is its mean loss, None where not told."""
        assert self._begun is not None
        self._batches.append((*self._begun, self._clock.mark(), loss))
        self._begun = None

    def close(self) -> SlotReport:
        """Return what the window's batches took, and begin the next window's."""
        for samples, data_ms, begun, ended, loss in self._batches:
            batch_ms = self._clock.elapsed_ms(begun, ended)
            self._ledger.record(batch_ms, data_ms, samples, None if loss is None else float(loss))
        self._batches.clear()
        return self._ledger.close()
