"""What a person wants to see of a run: a progress line while it works, a table when it is done.

The table is made from elche's event log (ELCHE_LOG): one `window` line for each update, with every rank's
batches, samples and milliseconds per batch.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS_BETWEEN_LINES = {True: 0.2, False: 2.0}  # on a terminal, and in a file or pipe


def start_log() -> Path:
    """Ask for an event log, before `elche.init()`, and return its path; ELCHE_LOG wins when it is set."""
    path = Path(tempfile.gettempdir()) / f"elche-{os.getpid()}.jsonl"
    return Path(os.environ.setdefault("ELCHE_LOG", str(path)).replace("{rank}", "0"))


@dataclass(frozen=True)
class Outcome:
    """What the training loop itself knows when it ends."""

    policy: str
    accuracy: float
    num_updates: int
    seconds: float


class Progress:
    """One line, rewritten on a terminal and repeated now and then elsewhere; rank 0 shows it."""

    def __init__(self, policy: str, num_epochs: int, *, visible: bool) -> None:
        self._policy = policy
        self._num_epochs = num_epochs
        self._visible = visible
        self._is_terminal = _is_terminal()
        self._started = time.perf_counter()
        self._next_line = self._started

    def show(self, epoch: int, num_updates: int) -> None:
        """Say how far training is, if it is time for a line."""
        if self._visible and time.perf_counter() >= self._next_line:
            self._next_line = time.perf_counter() + SECONDS_BETWEEN_LINES[self._is_terminal]
            self._write(epoch, num_updates)

    def finish(self, accuracy: float, num_updates: int) -> Outcome:
        """End the line and return what is known."""
        seconds = time.perf_counter() - self._started
        if self._visible:
            self._write(self._num_epochs, num_updates)
            if self._is_terminal:
                print()
        return Outcome(self._policy, accuracy, num_updates, seconds)

    def _write(self, epoch: int, num_updates: int) -> None:
        seconds = time.perf_counter() - self._started
        where = f"epoch {epoch:>2} of {self._num_epochs}, update {num_updates:>5}"
        line = f"{self._policy:<8} {where}, {seconds:5.1f} s"
        print(f"\r{line}" if self._is_terminal else line, end="" if self._is_terminal else "\n", flush=True)


def _is_terminal() -> bool:
    """Return whether somebody watches: mpirun gives its ranks a terminal, whatever its own output is."""
    try:
        above = Path(f"/proc/{os.getppid()}/fd/1").readlink()
    except OSError:
        return False
    return sys.stdout.isatty() and str(above).startswith(("/dev/pts/", "/dev/tty"))


@dataclass(frozen=True)
class Measured:
    """What the event log adds: each rank's batches per second and share of the samples.

    Attributes:
        num_samples: samples of all committed windows.
        speeds: batches per second while a rank computes, so without data, waiting and communication.
        shares: each rank's fraction of the samples.
        bound: samples per second if every rank worked at its own speed all the time.
    """

    num_samples: int
    speeds: list[float]
    shares: list[float]
    bound: float


def read_log(path: Path) -> list[Measured]:
    """Return what the event log says of each of its runs."""
    runs: list[list[dict[str, Any]]] = []
    for line in path.read_text().splitlines():
        event = json.loads(line)
        if event["event"] != "window":
            continue
        if event["window"] == 0:
            runs.append([])
        runs[-1].append(event)
    return [_measure(windows) for windows in runs]


def _measure(windows: list[dict[str, Any]]) -> Measured:
    by_slot = [sum(samples) for samples in zip(*(window["samples"] for window in windows), strict=True)]
    milliseconds = [
        statistics.median([ms for ms in of_slot if ms > 0] or [float("inf")])
        for of_slot in zip(*(window["ms_per_batch"] for window in windows), strict=True)
    ]
    num_batches = sum(sum(window["batches"]) for window in windows)
    speeds = [1000 / ms for ms in milliseconds]
    return Measured(
        num_samples=sum(by_slot),
        speeds=speeds,
        shares=[samples / sum(by_slot) for samples in by_slot],
        bound=sum(speeds) * sum(by_slot) / num_batches,
    )


def table(title: str, outcomes: list[Outcome], log: Path) -> str:
    """Return the summary: one column for each run, then one line for each rank."""
    measured = read_log(log)[-len(outcomes) :]  # the log may hold earlier runs
    per_second = [m.num_samples / outcome.seconds for outcome, m in zip(outcomes, measured, strict=True)]
    rows = [
        ("", [outcome.policy for outcome in outcomes]),
        ("test accuracy", [f"{outcome.accuracy:.1%}" for outcome in outcomes]),
        ("updates", [f"{outcome.num_updates:,}" for outcome in outcomes]),
        ("seconds", [f"{outcome.seconds:.1f}" for outcome in outcomes]),
        ("samples/s", [f"{rate:,.0f}" for rate in per_second]),
        ("bound, samples/s", [f"{m.bound:,.0f}" for m in measured]),
        ("reached", [f"{rate / m.bound:.1%}" for rate, m in zip(per_second, measured, strict=True)]),
        ("", []),
        ("rank, batches/s", ["share of the work"]),
    ]
    for rank, speed in enumerate(measured[0].speeds):
        rows.append((f"{rank:>4} {speed:10.1f}", [f"{m.shares[rank]:.1%}" for m in measured]))
    lines = [f"{name:<18}" + "".join(f"{cell:>12}" for cell in cells) for name, cells in rows]
    notes = ["bound: the ranks' own speeds added up, as if none ever waited", f"event log: {log}"]
    return "\n".join(["", title, "", *(line.rstrip() for line in lines), "", *notes])
