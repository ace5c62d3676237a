"""Faults of all kinds at random, and the laws hold."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress

import pytest
from cluster_rig import Job
from waiting import is_alive, until

FIRST = ("SIGKILL", "exception", "SIGSTOP", "slow")  # these come in any case
ENDS = ("SIGKILL", "exception", "exit5", "_exit3")
MOST_ENDS = 5  # of 8 processes
LIMIT_SECONDS = 90.0  # the longest that all may take after the last fault


class Chaos:
    """Does harm to a job, by dice."""

    def __init__(self, job: Job, seed: int, processes: int) -> None:
        self._job, self._dice, self._processes = job, random.Random(seed), range(processes)
        self._frozen: dict[int, float] = {}  # by pid, when it goes on
        self._first = self._dice.sample(FIRST, len(FIRST))
        self.done: list[tuple[str, int]] = []

    def rage(self, seconds: float) -> None:
        """Do one thing after the other for so long, then let whoever is stopped go on."""
        until_ = time.monotonic() + seconds
        while (now := time.monotonic()) < until_:
            self._thaw(now)
            if len(trains := self.training()) > 2:
                self._harm(self._dice.choice(trains))
            time.sleep(self._dice.uniform(0.2, 1.0))
        self._thaw(float("inf"))

    def training(self) -> list[int]:
        """The processes that have closed a window lately and are not stopped."""
        now = time.monotonic()
        return [
            process
            for process in self._processes
            if any(now - note["at"] < 1.0 for note in self._job.notes(process)[-1:] if "window" in note)
            and self._job.pid(process) not in self._frozen
        ]

    def _harm(self, process: int) -> None:
        may_end = sum(kind in ENDS for kind, _ in self.done) < MOST_ENDS
        kinds = ["slow", "SIGSTOP", "SIGSTOP", *(ENDS if may_end else ())]
        kind = self._first.pop() if self._first else self._dice.choice(kinds)
        pid = self._job.pid(process)
        self.done.append((kind, process))
        if kind == "SIGSTOP":
            _signal(pid, signal.SIGSTOP)
            self._frozen[pid] = time.monotonic() + self._dice.uniform(0.1, 4.0)
        else:
            before = len(self._job.noted("fired", process))
            self._job.order(process, kind)
            until(lambda: len(self._job.noted("fired", process)) > before or not is_alive(pid), 20.0)

    def _thaw(self, now: float) -> None:
        for pid in [pid for pid, when in self._frozen.items() if now >= when]:
            del self._frozen[pid]
            _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it may have ended a moment ago, by an earlier fault
        os.kill(pid, number)


def assert_survives(launch, seed: int, seconds: float) -> None:
    print(f"seed {seed}")
    job = launch(
        "-np", "6", "--spares", "1", "--respawn", "1", "--stall-seconds", "1", faults=[], epochs=10_000
    )
    job.wait_for_window(2)
    chaos = Chaos(job, seed, 8)
    chaos.rage(seconds)
    print(*chaos.done)
    job.order(until(chaos.training)[0], "finish")
    assert job.end(LIMIT_SECONDS) == 0, job.story()
    job.assert_lawful(epochs=max((entry["epoch"] + 1 for entry in job.log("epoch")), default=0))
    assert {kind for kind, _ in chaos.done} >= set(FIRST)
    assert len(job.log("lost")) >= 2


def test_chaos(launch):
    assert_survives(launch, seed=7, seconds=12.0)


@pytest.mark.soak
@pytest.mark.parametrize("_", range(5))
def test_chaos_for_long(launch, _):
    assert_survives(launch, seed=random.SystemRandom().randrange(1_000_000), seconds=60.0)
