"""Messages between the processes of MPI's world, one call at a time, and what becomes of those given up.

What Open MPI 5.0.11 makes of a loss:
* A probe of any source fails until the loss is acknowledged, and is right again after.
* A message of a process that is gone may be seen and never received.
* `Get_failed` moves nothing on, so a probe has to.
* A receive that has been matched cannot be cancelled: a member that was stopped in the midst of a message
  writes the rest of it when it wakes.
* Over TCP a death in the midst of a message that is longer than 64 KB crashes or hangs those that live, in 4
  runs of 7. Shorter ones are sent at once: 0 of 24.
Besides, a message longer than the buffer that receives it overwrites what lies behind.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from elche.comm.base import Buffer
from elche.comm.mpi import hosts_of

if TYPE_CHECKING:
    from mpi4py import MPI

    Requests = list[MPI.Request]
    Planned = list[MPI.Prequest]
    Messages = Iterable[tuple[Buffer, int]]  # with the process they go to, or come from

LONGEST_BYTES = 1 << 30  # an MPI older than 4 counts to 2^31 - 1
LONGEST_TO_OTHER_HOSTS = 1 << 15


class Wire:
    """Sends and receives bytes; any thread may call it.

    Attributes:
        lock: held during every call of MPI.
        mpi_error: what MPI's errors are in Python.
        process: this process's rank in MPI's world.
        hosts: by process, a number that processes of one host share.
    """

    lock: threading.RLock
    mpi_error: type[Exception]
    process: int
    hosts: list[int]

    def __init__(self, world: MPI.Intracomm) -> None:
        """Use `world`, which nobody else does. Collective."""
        from mpi4py import MPI

        self._mpi, self._world, self.mpi_error = MPI, world, MPI.Exception
        for comm in (world, MPI.COMM_WORLD, MPI.COMM_SELF):
            comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.lock, self._status = threading.RLock(), MPI.Status()
        self.process, self.hosts, self._everyone = world.rank, hosts_of(world), world.Get_group()
        self._gone: frozenset[int] = frozenset()
        self._abandoned: Requests = []
        self._planned: deque[MPI.Request] = deque()
        self._retired: dict[int, set[int]] = {}  # tags, and who may have sent under them last

    def send(self, messages: Messages, tag: int, requests: Requests) -> None:
        """Begin to send; what is under way is added to `requests`, also where one cannot be begun."""
        with self.lock:
            for piece, process in self._pieces(messages):
                requests.append(self._world.Isend([piece, self._mpi.BYTE], process, tag))

    def receive(self, messages: Messages, tag: int, requests: Requests) -> None:
        """Begin to receive buffers, of exactly the sizes that are sent."""
        with self.lock:
            for piece, process in self._pieces(messages):
                requests.append(self._world.Irecv([piece, self._mpi.BYTE], process, tag))

    def plan(self, sends: Messages, receives: Messages, tag: int) -> Planned:
        """Return what sends and receives these, any number of times."""
        world, byte = self._world, self._mpi.BYTE
        with self.lock:
            heard = [
                world.Recv_init([piece, byte], process, tag) for piece, process in self._pieces(receives)
            ]
            return heard + [
                world.Send_init([piece, byte], process, tag) for piece, process in self._pieces(sends)
            ]

    def start(self, planned: Planned) -> None:
        """Do once what was planned."""
        with self.lock:
            self._mpi.Prequest.Startall(planned)

    def have_ended(self, requests: Requests) -> bool:
        """Drop what has ended from the end of `requests`; return whether nothing is left."""
        with self.lock:
            while requests and requests[-1].Test():
                requests.pop()
        return not requests

    def outcome(self, request: MPI.Request) -> bool | None:
        """Return whether it went well; None: it is under way."""
        with self.lock:
            try:
                return True if request.Test() else None
            except self.mpi_error:
                return False

    def gone(self) -> frozenset[int]:
        """Return the processes that are known to have ended; does not look out for more."""
        with self.lock:
            failed = self._world.Get_failed()
            if failed.size != len(self._gone):
                ranks = self._mpi.Group.Translate_ranks(failed, list(range(failed.size)), self._everyone)
                self._gone = frozenset(ranks)
            failed.Free()
            return self._gone

    def take(self, tag: int) -> tuple[MPI.Request | None, Buffer, int] | None:
        """Begin to receive the next message that has come from anybody.

        Args:
            tag: of the message.

        Returns:
            The receive, None if it failed; where it goes; who sent it. None: there is no message.
        """
        with self.lock:
            message = self._probe(tag)
            if message is None:
                return None
            buffer = np.empty(self._status.Get_count(self._mpi.BYTE), np.uint8)
            with suppress(self.mpi_error):
                return message.Irecv([buffer, self._mpi.BYTE]), buffer, self._status.source
            return None, buffer, self._status.source

    # What is given up.

    def abandon(self, requests: Sequence[MPI.Request]) -> None:
        """Cancel receives; what was matched before, and sends, live on with their buffers until they end."""
        with self.lock:
            for request in requests:
                if self.outcome(request) is None:  # to cancel what was planned and not begun is no good
                    with suppress(self.mpi_error):
                        request.Cancel()
            self._abandoned = [one for one in [*self._abandoned, *requests] if not self._let_go(one)]

    def retire(self, tag: int, processes: Sequence[int], planned: Planned) -> None:
        """Note that no message under `tag` is received any more, nor done what was planned."""
        self._retired.setdefault(tag, set(processes) - {self.process})
        self._planned.extend(planned)  # nothing more: it may be called in the midst of any other method

    def sweep(self, come: Set[int] = frozenset()) -> int:
        """Receive, for nothing, what was sent under retired tags: it would hold its senders' buffers.

        Who has come to a newer communicator sends no more under the older ones; a tag of which that holds for
        all is forgotten.

        Args:
            come: these have come to a newer communicator.

        Returns:
            How many abandoned operations are still under way; they hold their buffers.
        """
        with self.lock:
            for tag, senders in list(self._retired.items()):
                while (taken := self.take(tag)) is not None:
                    if taken[0] is not None:
                        self._abandoned.append(taken[0])
                senders -= come | self._gone
                if not senders:
                    del self._retired[tag]
            self.abandon([self._planned.popleft() for _ in range(len(self._planned))])
            return len(self._abandoned)

    def abort(self, code: int) -> None:
        """End the job."""
        self._world.Abort(code)

    def _pieces(self, messages: Messages) -> Iterator[tuple[Buffer, int]]:
        for buffer, process in messages:
            near = self.hosts[process] == self.hosts[self.process]
            step = (LONGEST_BYTES if near else LONGEST_TO_OTHER_HOSTS) // buffer.itemsize
            if buffer.size <= step:
                yield buffer, process
            else:
                for start in range(0, buffer.size, step):
                    yield buffer[start : start + step], process

    def _probe(self, tag: int) -> MPI.Message | None:
        for _ in range(2):
            try:
                return self._world.Improbe(self._mpi.ANY_SOURCE, tag, self._status)
            except self.mpi_error:
                with suppress(self.mpi_error):
                    self._world.Ack_failed()
        return None

    def _let_go(self, request: MPI.Request) -> bool:
        if self.outcome(request) is None:
            return False
        if request:  # it was planned
            request.Free()
        return True
