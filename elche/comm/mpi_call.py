"""One verb of `MpiDirectComm` under way: its messages, its deadline, and where MPI's errors become ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING

from elche.comm.base import LIKELY_CAUSE, Buffer, require_seconds
from elche.comm.polling import SPIN_SECONDS
from elche.errors import CommError, DeadlineError

if TYPE_CHECKING:
    from elche.comm.mpi_direct import MpiDirectComm
    from elche.comm.mpi_wire import Planned, Requests

BYTES_PER_SECOND = 2e9


class Call:
    """A context: an error that leaves it makes the communicator unusable and cancels what is under way."""

    def __init__(
        self, comm: MpiDirectComm, verb: str, deadline_seconds: float | None, num_bytes: int
    ) -> None:
        """Begin.

        Args:
            comm: whose.
            verb: which.
            deadline_seconds: how long it may last; None: the communicator's own.
            num_bytes: how much there is to move; a wait for much of it is spent without naps.

        Raises:
            CommError: the communicator is unusable.
        """
        self._comm, self._verb, self._wire = comm, verb, comm.rendezvous.wire
        if comm.unusable is None and comm.rendezvous.is_revoked(comm.name):
            comm.unusable = "it was revoked"
        if comm.unusable is not None:
            raise CommError(f"rank {comm.rank} of {comm.size} cannot {verb}: {comm.unusable}")
        self._limit = comm.deadline_seconds if deadline_seconds is None else require_seconds(deadline_seconds)
        self._until = perf_counter() + self._limit
        self._spin_seconds = SPIN_SECONDS + num_bytes / BYTES_PER_SECOND
        self._begun: list[Requests | Planned] = []
        comm.unusable = f"{verb} was interrupted"  # holds if anything leaves from here on

    def __enter__(self) -> Call:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        comm = self._comm
        if error is None:
            comm.unusable = None
            return
        self._wire.abandon([request for requests in self._begun for request in requests])
        comm.retire()
        if isinstance(error, self._wire.mpi_error):
            comm.unusable = f"{self._verb} failed: {error}"
            raise CommError(f"{self._verb} failed on rank {comm.rank} of {comm.size}: {error}") from error

    def send(self, messages: Iterable[tuple[Buffer, int]]) -> Requests:
        """Begin to send each buffer to its rank."""
        requests = self._begin()
        self._wire.send(self._addressed(messages), self._comm.tag, requests)
        return requests

    def receive(self, messages: Iterable[tuple[Buffer, int]]) -> Requests:
        """Begin to receive each buffer from its rank."""
        requests = self._begin()
        self._wire.receive(self._addressed(messages), self._comm.tag, requests)
        return requests

    def run(self, planned: Planned) -> None:
        """Do what was planned."""
        self._begun.append(planned)
        self._wire.start(planned)
        self.wait([*planned])

    def wait(self, requests: Requests) -> None:
        """Return when all of these have ended; they are taken from the list."""
        comm = self._comm
        in_time = comm.poller.wait(
            lambda: self._wire.have_ended(requests),
            limit_seconds=self._until - perf_counter(),
            spin_seconds=self._spin_seconds,
            watch=self._watch,
        )
        if not in_time:
            comm.unusable = f"{self._verb} did not end within {self._limit:g} s"
            raise DeadlineError(f"{comm.unusable}; rank {comm.rank} of {comm.size} waited: {LIKELY_CAUSE}")

    def do_in_turns(self, blocks: Iterable[Iterator[None]]) -> None:
        """Do the steps of all blocks, the next block's first before this one's second: none waits alone.

        The order is the same on all ranks, so messages between two of them need no number. A rank that was
        stopped may find messages of others that have given up since, and changed their arrays; but then they
        have revoked the communicator.
        """
        ended = object()
        under_way: list[Iterator[None]] = []
        for block in blocks:
            under_way = [steps for steps in (block, *under_way) if next(steps, ended) is not ended]
        while under_way:
            under_way = [steps for steps in under_way if next(steps, ended) is not ended]
        self._comm.rendezvous.check(self._comm.name, ())

    def _begin(self) -> Requests:
        requests: Requests = []
        self._begun.append(requests)
        return requests

    def _addressed(self, messages: Iterable[tuple[Buffer, int]]) -> Iterator[tuple[Buffer, int]]:
        return ((buffer, self._comm.processes[rank]) for buffer, rank in messages)

    def _watch(self) -> None:
        self._comm.rendezvous.check(self._comm.name, self._comm.processes)
        if self._comm.watch is not None:
            self._comm.watch()
