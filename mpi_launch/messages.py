"""One JSON object a line: how a rank, its guard and the launcher talk.

A rank finds its guard by ELCHE_GUARD, "fd:NUMBER:INODE" of an inherited socket; a guard finds the launcher by
"tcp:TOKEN:PORT:ADDRESS,ADDRESS".

| from | to | message |
|---|---|---|
| rank | guard, launcher | an object with "event": listening, lost, joined, slot_dead, evict, stop |
| rank | guard | {"beat": true, "in_batch": bool} |
| launcher | guard, rank | {"stop": true, "exit_code": n}, {"grow": n, "ranks": so many in all} |
| launcher | guard | {"kill": true}, {"signal": n}, {"set_aside": bool} |
| guard | launcher | an object with "event": started, ended, frozen, thawed |
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from elche.errors import ConfigError

Message = dict[str, Any]
PATIENCE_SECONDS = 0.02  # how long a message may wait for a full socket; it is then kept for the next time
MOST_KEPT_BYTES = 1 << 20  # beyond, messages to a peer that does not read are dropped


def say(text: str) -> None:
    """Print a line of the launcher's own, or a guard's, for the user."""
    print(f"elche-run: {text}", file=sys.stderr, flush=True)  # noqa: T201


class Channel:
    """A stream socket that carries messages; neither direction raises or waits for the peer."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over a socket.

        Args:
            connection: connected.
        """
        connection.setblocking(False)
        self._socket = connection
        self._received = b""
        self._kept = b""
        self.is_open = True  # until the peer has closed, or the connection is broken

    def fileno(self) -> int:
        """Return the descriptor, so that a selector can watch it."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send what can be sent within a moment, and keep the rest for the next call."""
        if len(self._kept) < MOST_KEPT_BYTES:
            self._kept += json.dumps(message).encode() + b"\n"
        until = time.monotonic() + PATIENCE_SECONDS
        while self.is_open and self._kept:
            try:
                self._kept = self._kept[self._socket.send(self._kept) :]
            except BlockingIOError:
                patience = until - time.monotonic()
                if patience <= 0 or not select.select([], [self._socket], [], patience)[1]:
                    return
            except OSError:
                self.is_open = False

    def receive(self) -> list[Message]:
        """Return the messages that have come; what is no JSON object is left out."""
        while self.is_open:
            try:
                piece = self._socket.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            self.is_open = piece != b""
            self._received += piece
        *lines, self._received = self._received.split(b"\n")
        return [message for message in map(_parse, lines) if message is not None]

    def finish(self) -> None:
        """Close so that what was sent still arrives."""
        self.receive()  # a socket that is closed with unread input resets the connection
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self.close()

    def close(self) -> None:
        """Close at once."""
        self.is_open = False
        self._socket.close()


class GuardLine:
    """A rank's line to its guard; without a guard it says nothing to nobody. Any thread may use it."""

    def __init__(self, text: str | None) -> None:
        """Take the line that the guard has left open.

        Args:
            text: `Environment.guard`.

        Raises:
            ConfigError: the text is not a guard's.
        """
        self._lock = threading.Lock()
        self._channel = None if text is None else _inherited(text)
        self.tell({"event": "listening"})

    @property
    def is_open(self) -> bool:
        """Whether somebody listens."""
        return self._channel is not None and self._channel.is_open

    def tell(self, message: Message) -> None:
        """Tell the guard; never raises, and never waits for more than a moment."""
        with self._lock:
            if self._channel is not None:
                self._channel.send(message)

    def hear(self) -> list[Message]:
        """Return what the guard has told since the last call, without waiting."""
        with self._lock:
            return [] if self._channel is None else self._channel.receive()

    def close(self) -> None:
        """Hang up; what is told from now on goes nowhere."""
        with self._lock:
            if self._channel is not None:
                self._channel.finish()
                self._channel = None


def inheritable_text(end: socket.socket) -> str:
    """Return the text by which a child that inherits `end` finds it."""
    return f"fd:{end.fileno()}:{os.fstat(end.fileno()).st_ino}"


@dataclass(frozen=True)
class LauncherAddress:
    """How guards find the launcher, and what lets them in."""

    token: str
    port: int
    addresses: tuple[str, ...]

    def __str__(self) -> str:
        return f"tcp:{self.token}:{self.port}:{','.join(self.addresses)}"


def parse_launcher(text: str) -> LauncherAddress:
    """Return the address that the text spells.

    Args:
        text: `Environment.guard`, as the launcher sets it.

    Returns:
        The address.

    Raises:
        ConfigError: the text is not the launcher's.
    """
    try:
        kind, token, port, addresses = text.split(":", 3)
        if kind == "tcp":
            return LauncherAddress(token, int(port), tuple(addresses.split(",")))
    except ValueError:
        pass
    raise ConfigError(f"ELCHE_GUARD is set by elche-run, never by hand; got {text!r}")


def _inherited(text: str) -> Channel | None:
    """The socket, unless this process is one that inherited the variable but not the socket."""
    try:
        kind, number, inode = text.split(":")
        fd, expected = int(number), int(inode)
    except ValueError:
        kind = fd = expected = None  # type: ignore[assignment]
    if kind != "fd":
        raise ConfigError(f"ELCHE_GUARD is set by elche-run, never by hand; got {text!r}")
    try:
        if os.fstat(fd).st_ino != expected:
            return None
        os.set_inheritable(fd, False)
        return Channel(socket.socket(fileno=fd))
    except OSError:
        return None


def _parse(line: bytes) -> Message | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
