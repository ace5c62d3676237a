"""The event log of a job, read after its end: what each loss cost, and whether the job went on as one."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from recovery_job import Job, Record, records

COMPARED_WINDOWS = 5  # before a loss, whose gaps are set beside those after it


class History:
    """The event log of a job that has ended, on the clock by which signals were sent.

    Attributes:
        windows: committed ones, by number; of each event `at` is when, by `time.perf_counter()`.
        window_seconds: how long a window of all ranks takes.
    """

    def __init__(self, job: Job) -> None:
        """Read it.

        Args:
            job: which; its process 0 has told when the log's clock started.
        """
        started = job.notes("clock_started")[0]["clock_started"]
        self._events = records(job.log)
        for event in self._events:
            event["at"] = started + event["time_seconds"]
        self.windows = sorted(self.all("window"), key=lambda event: event["window"])
        most = max(map(_fewest, self.windows))
        whole = [b["at"] - a["at"] for a, b in pairwise(self.windows) if _fewest(b) == most]
        self.window_seconds = statistics.median(whole)

    def all(self, kind: str) -> list[Record]:
        """Return the events of a kind, in the log's order."""
        return [event for event in self._events if event["event"] == kind]

    def first(self, kind: str, after: float, **facts: int) -> Record:
        """Return the first event of a kind after a moment that says so."""
        events = sorted(self.all(kind), key=lambda event: event["at"])
        found = [event for event in events if event["at"] > after and facts.items() <= event.items()]
        if not found:
            raise RuntimeError(f"after the fault the log tells of no {kind} with {facts}, but of {events}")
        return found[0]

    def first_update(self, after: float, holds: Callable[[Record], bool] = lambda _: True) -> Record:
        """Return the first committed window after a moment for which this holds."""
        return next(window for window in self.windows if window["at"] > after and holds(window))

    def due(self, moment: float) -> float:
        """Return how long after a moment the window under way ends if nothing happens; 0 where it is late."""
        last = max(window["at"] for window in self.windows if window["at"] < moment)
        return max(0.0, last + self.window_seconds - moment)

    def longest_gap(self, start: float, stop: float) -> float:
        """Return the longest time between two updates of which the later one lies between these moments."""
        return max(b["at"] - a["at"] for a, b in pairwise(self.windows) if start < b["at"] <= stop)

    def samples(self, num_samples: int) -> dict[str, int]:
        """Return how many samples of finished epochs are in no window, and how many of all are in two."""
        times: dict[int, Counter[int]] = {}
        for window in self.windows:
            for _, start, stop in window["ranges"]:
                times.setdefault(window["epoch"], Counter()).update(range(start, stop))
        lost = sum(num_samples - len(times[epoch["epoch"]]) for epoch in self.all("epoch"))
        return {"lost": lost, "repeated": sum(n - 1 for epoch in times.values() for n in epoch.values())}


def _fewest(window: Record) -> int:
    return min(window["batches"])


def loss(history: History, process: int, killed: float) -> Record:
    """Return what the loss of a process cost.

    Args:
        history: of the job.
        process: which.
        killed: when.

    Returns:
        Seconds from the kill to the survivors' next update (and until it was due had nobody died), to a
        newcomer's entry, to its first update; and the longest gaps between updates, before and after.
    """
    lost = history.first("lost", killed, process=process)
    joined = history.first("joined", killed, slot=lost["slot"])
    update = history.first_update(killed, lambda window: window["generation"] >= lost["generation"])["at"]
    whole = history.first_update(joined["at"], lambda window: window["batches"][lost["slot"]] > 0)["at"]
    return {
        "process": process,
        "update": update - killed,
        "due": history.due(killed),
        "gap": history.longest_gap(killed, update),
        "entered": joined["at"] - killed,
        "transfer": joined["sync_ms"] / 1e3,
        "whole": whole - killed,
        "gap_before": history.longest_gap(killed - COMPARED_WINDOWS * history.window_seconds, killed),
        "gap_after": history.longest_gap(update, whole),
        "samples_again": sum(stop - start for start, stop in lost["returned"]),
    }


def silence(history: History, process: int, stopped: float, continued: float) -> Record:
    """Return what a process cost that was stopped for a while.

    Args:
        history: of the job.
        process: which.
        stopped: when.
        continued: when it could go on.

    Returns:
        The others' longest gap between updates meanwhile; seconds from its waking to its entry, to the
        others' next update, to the first one that it took part in.
    """
    lost = history.first("lost", stopped, process=process)
    joined = history.first("joined", continued, process=process)
    whole = history.first_update(joined["at"], lambda window: window["batches"][joined["slot"]] > 0)["at"]
    return {
        "process": process,
        "gap": history.longest_gap(stopped, continued),
        "entered": joined["at"] - continued,
        "due": history.due(continued),
        "transfer": joined["sync_ms"] / 1e3,
        "whole": whole - continued,
        "samples_again": sum(stop - start for start, stop in lost["returned"]),
    }
