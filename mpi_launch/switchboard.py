"""Where guards call the launcher: a listening socket, the guards' channels, and signals, in one wait."""

from __future__ import annotations

import hmac
import selectors
import socket
from collections.abc import Sequence

from elche.mpi_launch.messages import Channel, LauncherAddress, Message
from elche.mpi_launch.signals import SignalPipe

# A cut link is noticed after 30 s: by the first three where nothing is said, else by the last (in ms).
KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}


class Switchboard:
    """The launcher's ends of all lines; nothing waits but `listen`."""

    def __init__(self, token: str, addresses: Sequence[str] | None, signals: SignalPipe) -> None:
        """Open the listening socket.

        Args:
            token: what a guard must know.
            addresses: of this machine, as other hosts see them; None: guards are on this machine only.
            signals: wakes `listen`.
        """
        interface = "127.0.0.1" if addresses is None else "0.0.0.0"
        self._listener = socket.create_server((interface, 0), backlog=1024)
        self._listener.setblocking(False)
        self._token = token
        self.address = LauncherAddress(
            token, self._listener.getsockname()[1], tuple(addresses or ["127.0.0.1"])
        )
        self._guards: dict[int, Channel] = {}
        self._selector = selectors.DefaultSelector()
        for source in (self._listener, signals):
            self._selector.register(source, selectors.EVENT_READ)

    def listen(self, seconds: float) -> list[tuple[int, Message]]:
        """Return what guards have told, each with its process; wait at most so long for the first.

        Args:
            seconds: the longest wait; a signal ends it too.

        Returns:
            Process and message; a guard that is gone without a word has "event": "vanished".
        """
        told: list[tuple[int, Message]] = []
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.fileobj, Channel):
                told += self._hear(key.fileobj, key.data)
        return told

    @property
    def num_guards(self) -> int:
        """Guards on the line."""
        return len(self._guards)

    def tell(self, process: int, message: Message) -> None:
        """Tell the guard of one process, if it has called."""
        if process in self._guards:
            self._guards[process].send(message)

    def tell_all(self, message: Message) -> None:
        """Tell every guard that has called."""
        for guard in list(self._guards.values()):
            guard.send(message)

    def close(self) -> None:
        """Close every line; guards that still live end their ranks."""
        for source in [key.fileobj for key in self._selector.get_map().values()]:
            if not isinstance(source, (int, SignalPipe)):
                source.close()  # type: ignore[attr-defined]
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        keep_alive(connection)
        self._selector.register(Channel(connection), selectors.EVENT_READ, None)

    def _hear(self, channel: Channel, process: int | None) -> list[tuple[int, Message]]:
        messages = channel.receive()
        if process is None and messages:
            process = self._admit(channel, messages[0])
        if not channel.is_open:
            self._selector.unregister(channel)
            channel.close()
            if process is not None:
                del self._guards[process]
                messages.append({"event": "vanished"})
        return [] if process is None else [(process, message) for message in messages]

    def _admit(self, channel: Channel, hello: Message) -> int | None:
        """Return the number of the process whose guard this is; a caller without the token is cut off."""
        process = hello.get("process")
        known = hmac.compare_digest(str(hello.pop("token", "")).encode(), self._token.encode())
        if not known or not isinstance(process, int) or process in self._guards:
            channel.is_open = False
            return None
        self._guards[process] = channel
        self._selector.modify(channel, selectors.EVENT_READ, process)
        return process


def keep_alive(connection: socket.socket) -> None:
    """Let the system notice a peer whose host or link is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
