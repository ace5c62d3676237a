"""The newest committed state in each host's shared memory, for a job that dies whole and is started again.

`elche-run` names the directory, one for a job, and removes it at the end. The lowest rank of each host
writes; the ranks of the job that is started again take the newest that any of their hosts holds.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from elche.comm.base import Comm, broadcast_bytes
from elche.config import Environment
from elche.elastic import checkpoint as checkpoints

PAUSES_PER_SNAPSHOT = 50  # a large state is written less often: it may take 2 % of the time

StartUp = Callable[[Callable[[Comm], Any]], Any]


class Snapshots:
    """Keeps this host's snapshot, and finds the newest of all hosts'."""

    def __init__(self, environment: Environment) -> None:
        """Note where; nothing is written yet.

        Args:
            environment: names the directory, if there is one, and says whether the job is started again.
        """
        self._directory = None if environment.snapshots is None else Path(environment.snapshots)
        self._seconds, self._due = environment.snapshot_seconds, 0.0
        self._is_awaited = environment.resume and self._directory is not None

    def keep(self, comm: Comm, windows: int, capture: Callable[[], dict[str, Any]]) -> None:
        """Write the state, on the lowest rank of each host, where the last one is old enough.

        Args:
            comm: the ranks.
            windows: how many are committed.
            capture: returns the state.
        """
        begun = time.monotonic()
        if self._directory is None or windows == 0 or comm.local_rank != 0 or begun < self._due:
            return
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            checkpoints.write(self._directory / checkpoints.file_name(windows), checkpoints.pack(capture()))
            checkpoints.prune(self._directory, keep=1)
        except OSError as error:
            self._directory = None
            warnings.warn(f"no snapshots of this host from here on: {error}", RuntimeWarning, stacklevel=2)
        took = time.monotonic() - begun
        self._due = begun + max(self._seconds, PAUSES_PER_SNAPSHOT * took)

    def take_up(
        self, start_up: StartUp, windows: int, restore: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any] | None:
        """Go on from the newest state, where the job was started again and some host holds one; once.

        Args:
            start_up: does a step on all ranks, again where one is lost.
            windows: how many are committed here, such as by a checkpoint that the script has loaded.
            restore: takes a state over.

        Returns:
            The state that was taken over; None: none was.
        """
        if not self._is_awaited:
            return None
        self._is_awaited = False

        def step(comm: Comm) -> dict[str, Any] | None:
            state = self._newest_of_all(comm, windows)
            if state is not None:
                restore(state)
            return state

        taken: dict[str, Any] | None = start_up(step)
        return taken

    def _newest_of_all(self, comm: Comm, windows: int) -> dict[str, Any] | None:
        """Return the state of most windows, the same on all ranks; None where none beats `windows`."""
        assert self._directory is not None
        path = checkpoints.newest(self._directory)
        held = -1 if path is None else checkpoints.windows_of(path)
        held_r = comm.all_gather(np.array([held], np.int64))[:, 0]
        root = int(held_r.argmax())
        if held_r[root] <= windows:
            return None
        data = path.read_bytes() if path is not None and comm.rank == root else b""
        data = broadcast_bytes(comm, data, root=root)
        return checkpoints.unpack(data, f"the snapshot of rank {root}'s host")
