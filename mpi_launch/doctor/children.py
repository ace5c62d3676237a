"""Commands run to their end or to a deadline, all at once: one that hangs or crashes has ended, too."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from elche.mpi_launch.signals import ends_with_parent

CANNOT_START = 127  # as a shell has it
REAP_SECONDS = 10.0  # elche-run, asked to end, is through its last means after 8 s


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: its exit code, or minus the signal that ended it; None: its time was up.
        out: what it printed.
        err: what it printed as errors.
    """

    code: int | None
    out: str = ""
    err: str = ""


class Child:
    """A command under way, in a process group of its own that ends with this process."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Start it.

        Args:
            command: its words.
            env: its variables; None: this process's.

        Raises:
            OSError: it cannot be started.
        """
        # Files in memory: a pipe stays open with whoever inherits it, and no disk need be writable.
        self._out, self._err = os.memfd_create("out"), os.memfd_create("err")
        try:
            self._process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                preexec_fn=ends_with_parent(os.getpid(), signal.SIGTERM),  # noqa: PLW1509 - no threads
            )
        except OSError:
            self._close()
            raise

    def end(self, until: float) -> Ended:
        """Wait for its end; when the time is up, terminate it, then kill all of its group.

        Args:
            until: by time.monotonic().

        Returns:
            How it ended.
        """
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(max(0.0, until - time.monotonic()))
            return Ended(code, _read(self._out), _read(self._err))
        finally:
            self._kill()
            self._close()

    def _kill(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                if self._process.poll() is None:
                    self._process.send_signal(number)
                    self._process.wait(REAP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _close(self) -> None:
        os.close(self._out)
        os.close(self._err)


def run_all(
    commands: Mapping[str, Sequence[str]], seconds: float, env: Mapping[str, str] | None = None
) -> dict[str, Ended]:
    """Run commands side by side.

    Args:
        commands: by name.
        seconds: how long each may take.
        env: their variables; None: this process's.

    Returns:
        How each ended, by the same names.
    """
    until = time.monotonic() + seconds
    children: dict[str, Child | Ended] = {}
    for name, command in commands.items():
        try:
            children[name] = Child(command, env)
        except OSError as error:
            children[name] = Ended(CANNOT_START, err=str(error))
    return {name: child if isinstance(child, Ended) else child.end(until) for name, child in children.items()}


def _read(fd: int) -> str:
    pieces = []
    offset = 0
    while piece := os.pread(fd, 1 << 16, offset):
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces).decode(errors="replace")
