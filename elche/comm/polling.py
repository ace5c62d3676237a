"""Waiting with a deadline that leaves the cores to others and still notices the end in about 0.1 ms."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

HOT_SECONDS = 20e-6
SPIN_SECONDS = 200e-6
SLOW_YIELD_SECONDS = 1e-3
CROWDED_SECONDS = 1.0
SHORT_NAP_SECONDS, LONG_NAP_SECONDS = 10e-6, 50e-6
LONG_NAPS_AFTER_SECONDS = 10e-3


class Poller:
    """Waits by asking: 20 us hot, then yielding the core, then in naps.

    FIGURES
    """

    def __init__(self) -> None:
        self._crowded_until = 0.0

    def wait(
        self, done: Callable[[], bool], *, limit_seconds: float, spin_seconds: float = SPIN_SECONDS
    ) -> bool:
        """Return True as soon as `done()` is true, False once `limit_seconds` have passed without.

        Args:
            done: asks for the end and moves the operation on; called many times.
            limit_seconds: the deadline, counted from now.
            spin_seconds: how long to wait without naps.

        Returns:
            Whether `done()` became true in time.
        """
        begun = time.perf_counter()
        while not done():
            now = time.perf_counter()
            waited = now - begun
            if waited >= limit_seconds:
                return False
            if waited < HOT_SECONDS:
                continue
            if waited < spin_seconds and now >= self._crowded_until:
                self._yield_core(now)
            else:
                time.sleep(SHORT_NAP_SECONDS if waited < LONG_NAPS_AFTER_SECONDS else LONG_NAP_SECONDS)
        return True

    def _yield_core(self, now: float) -> None:
        os.sched_yield()
        back = time.perf_counter()
        if back - now > SLOW_YIELD_SECONDS:
            self._crowded_until = back + CROWDED_SECONDS
