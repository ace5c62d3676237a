"""Waiting with a deadline that leaves the cores to others and still notices the end in about 0.1 ms."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

HOT_SECONDS = 20e-6
SPIN_SECONDS = 1e-3
SLOW_YIELD_SECONDS = 1e-3
CROWDED_SECONDS = 0.05
SHORT_NAP_SECONDS, LONG_NAP_SECONDS = 10e-6, 50e-6  # Linux's timer slack adds 50 us
LONG_NAPS_AFTER_SECONDS = 10e-3
WATCH_SECONDS = 1e-3


class Poller:
    """Waits by asking: 20 us hot, then giving the core away between questions, then in naps.

    Measured with Open MPI 5.0 on 2 cores (Linux 6.18): all_gather of 16 float64, all_reduce of 1 KB and
    agree, medians in us, Python included. "Crowded": two other processes compute all the time.

        after 20 us hot        2 ranks  4 ranks  2 ranks, crowded
        yield until 200 us          13       80              7600
        stay hot until 200 us       13       60              1280
        nap at once                 13      350               640
        yield, naps when slow       13       80               460

    A yield to somebody who computes costs a slice of 4 ms, a nap does not; so a slow yield turns yields into
    naps, for 50 ms. A whole window of four ranks on two cores, whose Python takes turns, then costs 0.65 ms;
    with naps from 200 us on, or a second of naps after a slow yield, 0.75 to 1.5 ms.

    A wait that naps takes 7 to 16 % of a core and notices the end 60 to 120 us after it came; shorter naps
    take more (20 us: a third of a core). When mpirun counts more ranks than slots, Open MPI yields in every
    question itself: crowded, 4 ranks then need 4 to 12 ms, with `--mca mpi_yield_when_idle 0` 0.6 to 2 ms.
    """

    def __init__(self) -> None:
        self._crowded_until = 0.0

    def wait(
        self,
        done: Callable[[], bool],
        *,
        limit_seconds: float,
        spin_seconds: float = SPIN_SECONDS,
        watch: Callable[[], None] | None = None,
    ) -> bool:
        """Return True as soon as `done()` is true, False once `limit_seconds` have passed without.

        Args:
            done: asks for the end and moves the operation on; called many times.
            limit_seconds: the deadline, counted from now.
            spin_seconds: how long to wait without naps.
            watch: called about every millisecond; what it raises ends the wait. None: nobody watches.

        Returns:
            Whether `done()` became true in time.
        """
        begun = watched = time.perf_counter()
        while not done():
            now = time.perf_counter()
            waited = now - begun
            if waited >= limit_seconds:
                return False
            if waited < HOT_SECONDS:
                continue
            if watch is not None and now - watched >= WATCH_SECONDS:
                watched = now
                watch()
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
