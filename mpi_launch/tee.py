"""Copies of what a rank prints: DIR/rank.N/stdout and stderr, beside what goes on to the terminal."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import IO

from elche.errors import ConfigError

DRAIN_SECONDS = 1.0  # a worker that outlives its rank may hold the pipe open
PIECE_BYTES = 65536


class Tee:
    """The two pipes that a child prints into, and the threads that carry on what comes out of them.

    They are threads so that a terminal that stands still holds up the rank, as it always does, not its guard.
    """

    def __init__(self, folder: Path, *, append: bool) -> None:
        """Open the files and the pipes.

        Args:
            folder: the rank's own; it is made.
            append: whether what is there already stays.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._pipes = {fd: os.pipe() for fd in (1, 2)}
        self._files: dict[int, IO[bytes]] = {
            fd: (folder / name).open("ab" if append else "wb", buffering=0)
            for fd, name in ((1, "stdout"), (2, "stderr"))
        }
        self._threads: list[threading.Thread] = []

    def end_for_child(self, fd: int) -> int:
        """Return what a child has as its standard output (1) or standard error (2)."""
        return self._pipes[fd][1]

    def start(self) -> None:
        """Begin to carry; the child has been started."""
        for fd, (_, write) in self._pipes.items():
            os.close(write)
            self._threads.append(threading.Thread(target=self._carry, args=(fd,), daemon=True))
            self._threads[-1].start()

    def finish(self) -> None:
        """Wait a moment until all that the child has printed is out."""
        for thread in self._threads:
            thread.join(DRAIN_SECONDS)

    def _carry(self, fd: int) -> None:
        file, read = self._files[fd], self._pipes[fd][0]
        while piece := os.read(read, PIECE_BYTES):
            with contextlib.suppress(OSError):  # a full disk, or a terminal that is gone, is no rank's fault
                file.write(piece)
            with contextlib.suppress(OSError):
                _write_all(fd, piece)


def rank_folder(folder: str, rank: int, num_ranks: int) -> Path:
    """Return a rank's directory: DIR/rank.03 where there are ten to a hundred, so that names sort."""
    return Path(folder) / f"rank.{rank:0{len(str(num_ranks - 1))}d}"


def make_folders(folder: str, num_for_hydra: int) -> None:
    """Make the directory for copies, and those of ranks that Hydra expects to be there.

    Args:
        folder: DIR.
        num_for_hydra: how many ranks' directories; their numbers are not padded.

    Raises:
        ConfigError: they cannot be made.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for rank in range(num_for_hydra):
            (Path(folder) / f"rank.{rank}").mkdir(exist_ok=True)
    except OSError as error:
        why = f"a directory that can be made ({error.strerror})"
        raise ConfigError(f"--output-filename must be {why}, got {folder!r}") from None


def _write_all(fd: int, piece: bytes) -> None:
    while piece:
        piece = piece[os.write(fd, piece) :]
