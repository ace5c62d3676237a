"""The event log: one JSON object a line, appended by the lowest living rank."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import warnings
from pathlib import Path
from typing import Any, TextIO

from elche.events import Event, Run


class EventLog:
    """Appends events to a file; a file that cannot be written costs one warning, never the training."""

    def __init__(self, path: str | None) -> None:
        """Note where to write; nothing is opened yet.

        Args:
            path: where to append; with `{rank}` in it every rank writes its own; None: nowhere.
        """
        self._path = path
        self._file: TextIO | None = None
        self._kept: list[tuple[int, Event]] = []
        self._told = self._told_before = self._size = self._num_confirmed = 0

    def take_over(self, rank: int) -> None:
        """Write from now on if it is for this rank, the lowest or each with a file of its own; else cease.

        Args:
            rank: this process's number among the living.
        """
        path = self._path
        if path is None or (rank != 0 and "{rank}" not in path):
            self.close()
        elif self._file is None:
            own = Path(path.replace("{rank}", str(rank)))
            try:
                self._told = _num_windows(own) if own.is_file() else 0
                self._file = own.open("a", encoding="utf-8")
                self._size = _size(self._file)
            except OSError as error:
                self._give_up(error)

    def keep(self, window: int, event: Event) -> None:
        """Keep an event that follows from a window's commit till all are known to have committed it.

        The rank that writes may be lost before the others have; and they may have to write it in its stead.
        """
        if self._path is not None:
            self._kept.append((window, event))

    def confirm(self) -> None:
        """Write what was kept, but for what another rank has told: before this one, or while it was stopped.

        Where another writes, what was kept goes one confirmation later: by then that one has written it.
        """
        if self._file is None:
            del self._kept[: self._num_confirmed]
            self._num_confirmed = len(self._kept)
            return
        if _size(self._file) != self._size:
            self._told = _num_windows(Path(self._file.name))
        for window, event in self._kept:
            if max(0, window) >= self._told:
                self.write(event)
        self._kept.clear()
        self._num_confirmed = 0

    def pending(self) -> list[tuple[int, Event]]:
        """Return what is kept, for a job that may die before it is written."""
        return list(self._kept)

    def resume(self, pending: list[tuple[int, Event]]) -> None:
        """Write what a job that died had kept, but for what it had told; after this job's own `run`."""
        for window, event in pending:
            if max(0, window) >= self._told_before:
                self.write(event)

    @property
    def wanted(self) -> bool:
        """Whether somebody writes a log: this rank may have to go on with it."""
        return self._path is not None

    def write(self, event: Event) -> None:
        """Append one event as one whole line."""
        if isinstance(event, Run):
            self._told_before, self._told = self._told, 0  # windows are counted from here on
        if self._file is None:
            return
        record = {"event": event.event, **dataclasses.asdict(event)}
        try:
            self._file.write(json.dumps(_finite(record), allow_nan=False) + "\n")
            self._file.flush()
            self._size = _size(self._file)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file; may be repeated."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _give_up(self, error: OSError) -> None:
        self._file = self._path = None
        warnings.warn(f"no event log from here on: {error}", RuntimeWarning, stacklevel=3)


def _size(file: TextIO) -> int:
    return os.fstat(file.fileno()).st_size


def _num_windows(path: Path) -> int:
    """Return the number after the last window that a log tells of; 0 for none since its last `run`."""
    told = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith('{"event": "window"'):
            told = int(json.loads(line)["window"]) + 1
        elif line.startswith('{"event": "run"'):
            told = 0
        elif line.startswith('{"event": "resume"'):
            told = int(json.loads(line)["window"])
    return told


def _finite(value: Any) -> Any:
    """JSON has no inf and no nan: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
