"""The event log: one JSON object a line, appended by the lowest living rank."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from pathlib import Path
from typing import Any, TextIO

from elche.events import Event


class EventLog:
    """Appends events to a file; a file that cannot be written costs one warning, never the training."""

    def __init__(self, path: str | None, rank: int) -> None:
        """Open the log.

        Args:
            path: where to append; with `{rank}` in it every rank writes its own; None: nowhere.
            rank: this process's number.
        """
        self._file: TextIO | None = None
        if path is None or (rank != 0 and "{rank}" not in path):
            return
        try:
            self._file = Path(path.replace("{rank}", str(rank))).open("a", encoding="utf-8")  # noqa: SIM115 - closed by close()
        except OSError as error:
            self._give_up(error)

    @property
    def active(self) -> bool:
        """Whether `write` writes: spares making events that nobody reads."""
        return self._file is not None

    def write(self, event: Event) -> None:
        """Append one event as one whole line."""
        if self._file is None:
            return
        record = {"event": event.event, **dataclasses.asdict(event)}
        try:
            self._file.write(json.dumps(_finite(record), allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file; may be repeated."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _give_up(self, error: OSError) -> None:
        self._file = None
        warnings.warn(f"no event log from here on: {error}", RuntimeWarning, stacklevel=3)


def _finite(value: Any) -> Any:
    """JSON has no inf and no nan: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
