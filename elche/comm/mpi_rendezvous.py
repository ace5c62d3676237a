"""How MPI processes find each other across losses; needs an MPI with ULFM (`mpirun --with-ft ulfm`).

Everything is a message between two processes of MPI's world, which goes on among the living. The job's name
server is the register: its first write of a name stands, and a look at it costs 0.1 ms.
"""

from __future__ import annotations

import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import numpy as np

from elche.comm.base import Buffer, flush_output, require_members, require_short
from elche.comm.mpi_direct import MpiDirectComm
from elche.comm.mpi_start import start_mpi
from elche.comm.mpi_wire import Wire
from elche.comm.polling import Poller
from elche.errors import CommError, ConfigError, DeadlineError

if TYPE_CHECKING:
    from mpi4py import MPI

TAG, FIRST_TAG = 5, 1 << 10  # of messages; of communicators, and all from there on
PART_CHARS = 250  # of up to 4 bytes: Open MPI cuts what is published after 1,023 bytes
MESSAGE, COMING, REVOKED = b"m", b"c", b"r"
_made: list[MpiRendezvous] = []


def rendezvous() -> MpiRendezvous:
    """Return how this process finds the others that `mpirun` started; there is one for a process.

    Collective when it is first called; starts MPI if nobody has.

    Returns:
        This process's.

    Raises:
        CommError: MPI was started for one thread, and signs of life need a second.
    """
    mpi = start_mpi(finalize=False)  # after a loss MPI_Finalize may hang
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        raise CommError(
            "to survive losses elche calls MPI from two threads, but MPI was started without "
            "MPI_THREAD_MULTIPLE: leave mpi4py.rc.thread_level at 'multiple', or mpirun without --with-ft"
        )
    if not _made:
        _made.append(MpiRendezvous(mpi.COMM_WORLD.Dup()))
    return _made[0]


class MpiRendezvous:
    """`Rendezvous` between the processes of one `mpirun`, each named by its rank in MPI's world.

    Attributes:
        wire: what all messages go over.
    """

    wire: Wire

    def __init__(self, world: MPI.Intracomm) -> None:
        """Use `world`, which nobody else does. Collective."""
        from mpi4py import MPI

        self.process, self.num_processes = world.rank, world.size
        self.wire, self._mpi = Wire(world), MPI
        self._num_tags = cast(int, world.Get_attr(MPI.TAG_UB)) - FIRST_TAG
        self._names: set[str] = set()
        self._coming: defaultdict[str, set[int]] = defaultdict(set)
        self._revoked: set[str] = set()
        self._messages: deque[tuple[int, bytes]] = deque()
        self._sending: defaultdict[int, deque[MPI.Request]] = defaultdict(deque)
        self._arriving: defaultdict[int, deque[tuple[MPI.Request | None, Buffer]]] = defaultdict(deque)
        self._poller = Poller()

    def connect(
        self,
        processes: Sequence[int],
        name: str,
        *,
        deadline_seconds: float,
        watch: Callable[[], None] | None = None,
    ) -> MpiDirectComm:
        """Return a communicator of exactly these processes, in this order; all of them call it."""
        require_members(self.process, processes, self.num_processes)
        with self.wire.lock:
            if name in self._names:
                raise ConfigError(f"a name connects once, process {self.process} has used {name!r}")
            self._names.add(name)
        tag = FIRST_TAG + zlib.crc32(name.encode()) % self._num_tags
        comm, others = MpiDirectComm(self, processes, name, tag), set(processes) - {self.process}
        for process in others:
            self._post(process, COMING + name.encode())

        def all_come() -> bool:
            self._take_in()
            return others <= self._coming[name]

        def look() -> None:
            self.wire.sweep()  # one of these may wait for it
            self.check(name, processes)
            if watch is not None:
                watch()

        if not self._poller.wait(all_come, limit_seconds=deadline_seconds, watch=look):
            absent = sorted(others - self._coming[name])
            raise DeadlineError(f"processes {absent} did not come to {name} within {deadline_seconds:g} s")
        self.wire.sweep(others)
        return comm

    def send(self, process: int, message: bytes) -> None:
        """Send a small message; it arrives in order, or not at all where that process is gone."""
        if process == self.process:
            self._messages.append((process, message))
        else:
            self._post(process, MESSAGE + message)

    def receive(self) -> list[tuple[int, bytes]]:
        """Return the messages that have come since the last call, each with its sender."""
        self._take_in()
        with self.wire.lock:
            heard = list(self._messages)
            self._messages.clear()
        return heard

    def gone(self) -> frozenset[int]:
        """Return the processes that are known to have ended."""
        self._take_in()
        return self.wire.gone()

    def propose(self, name: str, value: str) -> str:
        """Write `value` under `name` unless somebody has; return what stands there."""
        require_short(name, value)
        parts = [value[start : start + PART_CHARS] for start in range(0, len(value), PART_CHARS)]
        own = f"{name}/{self.process}"
        with self.wire.lock:
            for number, part in enumerate(parts):
                self._publish(f"{own}/{number}", f"={part}")  # an empty text cannot be published
            self._publish(name, f"{own} {len(parts)}")
        won = self.look_up(name)
        if won is None:
            raise CommError(f"process {self.process} cannot write {name}: the job's name server is gone")
        return won

    def look_up(self, name: str) -> str | None:
        """Return what stands under `name`, None for nothing."""
        with self.wire.lock:
            try:
                writer, num_parts = self._mpi.Lookup_name(name).rsplit(" ", 1)
                return "".join(
                    self._mpi.Lookup_name(f"{writer}/{number}")[1:] for number in range(int(num_parts))
                )
            except self.wire.mpi_error:
                return None

    # For communicators.

    def check(self, name: str, processes: Sequence[int]) -> None:
        """Raise `CommError` where a communicator makes no sense any more, or one of `processes` is gone."""
        gone = self.gone()
        if name in self._revoked:
            raise CommError(f"communicator {name} was revoked")
        if lost := gone.intersection(processes):
            raise CommError(f"processes {sorted(lost)} of communicator {name} are gone")

    def is_revoked(self, name: str) -> bool:
        """Return whether somebody is known to have revoked a communicator."""
        return name in self._revoked

    def revoke(self, name: str, processes: Sequence[int]) -> None:
        """Let all of these processes know that a communicator is not to be used any more."""
        if name not in self._revoked:
            self._revoked.add(name)
            for process in set(processes) - {self.process}:
                self._post(process, REVOKED + name.encode())

    def abort(self, code: int) -> None:
        """End the job."""
        flush_output()
        self.wire.abort(code)

    def _post(self, process: int, message: bytes) -> None:
        sending: list[MPI.Request] = []
        with self.wire.lock, suppress(self.wire.mpi_error):
            earlier = self._sending[process]
            while earlier and self.wire.outcome(earlier[0]) is not None:
                earlier.popleft()
            self.wire.send([(np.frombuffer(message, np.uint8), process)], TAG, sending)
            earlier.extend(sending)

    def _take_in(self) -> None:
        """File the messages that have come, each sender's in their order."""
        with self.wire.lock:
            while (taken := self.wire.take(TAG)) is not None:
                receive, text, process = taken
                self._arriving[process].append((receive, text))
            for process, arriving in self._arriving.items():
                while arriving and self._has_arrived(process, *arriving[0]):
                    arriving.popleft()

    def _has_arrived(self, process: int, receive: MPI.Request | None, text: Buffer) -> bool:
        """File a message if it is here; return whether nothing more is to be awaited of it."""
        outcome = receive is not None and self.wire.outcome(receive)
        if outcome:
            kind, words = text[:1].tobytes(), text[1:].tobytes()
            if kind == MESSAGE:
                self._messages.append((process, words))
            elif kind == COMING:
                self._coming[words.decode()].add(process)
            else:
                self._revoked.add(words.decode())
        return outcome is not None

    def _publish(self, name: str, value: str) -> None:
        with suppress(self.wire.mpi_error):  # somebody was first
            self._mpi.Publish_name(name, value)
