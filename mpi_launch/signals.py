"""Signals as something to wait for, one byte each, and processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Callable, Iterable

GROW_ONE, GROW_QUEUED = signal.SIGUSR1, signal.SIGRTMIN  # signals of the second kind are never merged
STOPS = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
PR_SET_PDEATHSIG = 1


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """A signal asked this process to stop while nothing ran that could be told."""

    def __init__(self, number: int) -> None:
        """Note the signal.

        Args:
            number: the signal.
        """
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class SignalPipe:
    """Signals of this process, to be read; a selector can watch it. Made in the main thread."""

    def __init__(self, numbers: Iterable[int]) -> None:
        """Catch these signals from now on; those that were ignored, as under nohup, stay ignored.

        Args:
            numbers: the signals.
        """
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)
        signal.set_wakeup_fd(self._write.fileno())
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _nothing)

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._read.fileno()

    def read(self) -> list[int]:
        """Return the signals that have come since the last call."""
        try:
            return list(self._read.recv(4096))
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Be told of no more signals."""
        signal.set_wakeup_fd(-1)
        self._read.close()
        self._write.close()


def ends_with_parent(parent: int, number: int = signal.SIGKILL) -> Callable[[], None]:
    """Return what a child calls first: it gets a process group of its own, and `number` when `parent` ends.

    The group keeps signals to the parent's group from reaching the child twice: directly, and passed on.

    Args:
        parent: the process that starts the child, from its main thread.
        number: the signal.

    Returns:
        A function for Popen's preexec_fn.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)

    def in_child() -> None:
        os.setpgid(0, 0)
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the line above
            os.kill(os.getpid(), signal.SIGKILL)

    return in_child


def _nothing(number: int, frame: object) -> None:
    """The byte in the pipe says it all."""
