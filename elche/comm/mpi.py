"""The `mpi` backend: mpi4py's non-blocking collectives on host buffers, polled with a deadline.

mpi4py is imported when a world is asked for, not before: importing this module starts no MPI.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from elche.comm.base import (
    DEADLINE_SECONDS,
    LIKELY_CAUSE,
    Buffer,
    flush_output,
    require_contiguous,
    require_members,
    require_pairs,
    require_root,
    require_rows,
    require_seconds,
)
from elche.comm.mpi_beside import Attendance, Spare
from elche.comm.mpi_start import start_mpi
from elche.comm.neighbours import Neighbours
from elche.comm.polling import SPIN_SECONDS, Poller
from elche.errors import CommError, DeadlineError

if TYPE_CHECKING:
    from mpi4py import MPI

MAX_COUNT = 2**31 - 1  # elements that one call can name in an MPI older than 4
BYTES_PER_SECOND = 2e9  # 4 ranks on 2 cores reduce 1 MB in 0.5 ms when they spin, in 0.9 ms when they nap

# A request and what it was called with. MPI reads and writes those buffers until it has ended, and mpi4py 4.1
# holds them for all_gather and broadcast but not for all_reduce: freed memory was written to.
_Operation = tuple["MPI.Request", tuple[Any, ...]]
_abandoned: list[_Operation] = []  # they outlive their communicator


def sweep_abandoned() -> int:
    """Let go of abandoned operations that have ended; return how many have not."""
    _abandoned[:] = [(request, call) for request, call in _abandoned if not _has_ended(request)]
    return len(_abandoned)


def world(*, deadline_seconds: float = DEADLINE_SECONDS) -> MpiComm:
    """Return a communicator of all ranks that `mpirun` started; without `mpirun`, of this one alone.

    Starts MPI if nobody has. It is a duplicate, so that no message of the script's own meets one of elche's.
    Collective.

    Args:
        deadline_seconds: how long a verb waits when it is not told.

    Returns:
        The communicator.
    """
    mpi = start_mpi(finalize=True)
    comm, spare = mpi.COMM_WORLD.Dup(), mpi.COMM_WORLD.Dup()
    return MpiComm(comm, hosts_of(comm), spare=spare, deadline_seconds=deadline_seconds)


def hosts_of(comm: MPI.Intracomm) -> list[int]:
    """Return, by rank, the lowest rank on the same host. Collective."""
    from mpi4py import MPI

    host = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    hosts: list[int] = comm.allgather(host.bcast(comm.rank))
    host.Free()
    return hosts


class MpiComm:
    """`Comm` over an MPI communicator that nobody else uses."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        hosts: Sequence[int],
        *,
        spare: MPI.Intracomm | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        """Speak over `comm`.

        Args:
            comm: the ranks.
            hosts: by rank, a number that ranks of one host share.
            spare: a duplicate of `comm`; without one nothing can be made beside it.
            deadline_seconds: how long a verb waits when it is not told.
        """
        from mpi4py import MPI

        self.deadline_seconds = require_seconds(deadline_seconds)
        self._mpi_error = MPI.Exception
        self._max_count = MAX_COUNT if MPI.Get_version() < (4, 0) else sys.maxsize
        self._comm = comm
        self._poller = Poller()
        self._unusable: str | None = None
        comm.Set_errhandler(MPI.ERRORS_RETURN)  # mpi4py then raises; the default would end the process
        self.rank, self.size = comm.rank, comm.size
        self._said, self._heard = np.empty(1, np.uint8), np.empty(comm.size, np.uint8)
        self.hosts = list(hosts)
        self._spare = None if spare is None else Spare(spare)
        self._attendance, self._num_verbs = Attendance(comm), 0
        near = Neighbours.of(hosts, comm.rank)
        self.local_rank, self.local_size = near.local_rank, near.local_size
        self.cross_rank, self.cross_size = near.cross_rank, near.cross_size
        self.watch: Callable[[], None] | None = None
        sweep_abandoned()

    def all_gather(self, send: Buffer, *, deadline_seconds: float | None = None) -> Buffer:
        """Return every rank's `send`, stacked in rank order: shape `(size, *send.shape)`, same dtype."""
        require_contiguous("all_gather", send)
        rows = np.empty((self.size, *send.shape), send.dtype)
        if send.nbytes <= self._max_count:
            calls = [(_as_bytes(send), _as_bytes(rows))]
            self._complete("all_gather", self._comm.Iallgather, calls, deadline_seconds)
        else:
            rows[self.rank] = send
            parts = [(part, root) for root, row in enumerate(rows) for part in self._split(_as_bytes(row))]
            self._complete("all_gather", self._comm.Ibcast, parts, deadline_seconds)
        return rows

    def all_reduce(
        self, sends: Sequence[Buffer], recvs: Sequence[Buffer], *, deadline_seconds: float | None = None
    ) -> None:
        """Sum `sends[i]` over the ranks into `recvs[i]`, for all i at once; `sends` stay as they were."""
        require_pairs(sends, recvs)
        calls = [
            pair
            for send, recv in zip(sends, recvs, strict=True)
            for pair in zip(self._split(send), self._split(recv), strict=True)
        ]
        num_bytes = sum(send.nbytes for send in sends)
        self._complete("all_reduce", self._comm.Iallreduce, calls, deadline_seconds, num_bytes)

    def all_to_all(self, send: Buffer, *, deadline_seconds: float | None = None) -> Buffer:
        """Return in row w what rank w has for this one, its `send[rank]`; `send` is `(size, ...)`."""
        require_rows(send, self.size)
        rows = np.empty_like(send)
        sent, heard = (array.reshape(self.size, -1).view(np.uint8) for array in (send, rows))
        starts = range(0, sent.shape[1], self._max_count)
        parts = [np.ascontiguousarray(sent[:, start : start + self._max_count]) for start in starts]
        calls = [(part, heard if len(parts) == 1 else np.empty_like(part)) for part in parts]
        self._complete("all_to_all", self._comm.Ialltoall, calls, deadline_seconds, send.nbytes)
        if len(parts) > 1:
            np.concatenate([part for _, part in calls], axis=1, out=heard)
        return rows

    def broadcast(
        self, buffers: Sequence[Buffer], *, root: int, deadline_seconds: float | None = None
    ) -> None:
        """Overwrite `buffers` on every rank with those of rank `root`, in place."""
        require_root(root, self.size)
        require_contiguous("broadcast", *buffers)
        calls = [(part, root) for buffer in buffers for part in self._split(_as_bytes(buffer))]
        num_bytes = sum(buffer.nbytes for buffer in buffers)
        self._complete("broadcast", self._comm.Ibcast, calls, deadline_seconds, num_bytes)

    def agree(self, ok: bool, *, deadline_seconds: float | None = None) -> bool:
        """Return whether every rank said `ok`; nobody returns before everybody has spoken."""
        # 18 us at 4 ranks on 2 cores; an all-reduce of one integer takes 24 to 33, in more steps.
        self._said[0] = ok
        self._complete("agree", self._comm.Iallgather, [(self._said, self._heard)], deadline_seconds)
        return 0 not in self._heard.tolist()

    def absent(self) -> list[int]:
        """Return the ranks that have not come to the verb under way, as far as is known: have not asked."""
        return self._attendance.absent(self._num_verbs)

    def beside(self, ranks: Sequence[int], name: str, *, deadline_seconds: float) -> MpiComm:
        """Return another communicator of these ranks, in this order; they all call it, a name once."""
        members = require_members(self.rank, ranks, self.size)
        if self._spare is None:
            raise CommError(f"no communicator is made beside one that is itself beside another, nor {name!r}")
        try:
            made = self._spare.make(members, name)
        except self._mpi_error as error:
            raise CommError(f"no communicator {name!r} of ranks {members}: {error}") from error
        comm = MpiComm(made, [self.hosts[rank] for rank in members], deadline_seconds=deadline_seconds)
        comm.watch = self.watch
        return comm

    def revoke(self) -> None:
        """Make every verb under way and to come fail, on all ranks where the MPI has ULFM."""
        self._unusable = self._unusable or "it was revoked"
        with suppress(self._mpi_error, NotImplementedError):  # an MPI without ULFM
            self._comm.Revoke()

    def close(self) -> None:
        """Refuse further verbs. MPI's own communicator stays: freeing it would be collective."""
        self._unusable = self._unusable or "it was closed"
        sweep_abandoned()

    def abort(self, code: int) -> None:
        """End the whole job with exit code `code`, whatever the other ranks are doing."""
        flush_output()
        self._comm.Abort(code)

    def _split(self, buffer: Buffer) -> list[Buffer]:
        """Return `buffer` flat, in as few parts as this MPI's counts allow."""
        if buffer.size <= self._max_count:
            return [buffer]
        flat_n, step = buffer.reshape(-1), self._max_count
        return [flat_n[start : start + step] for start in range(0, flat_n.size, step)]

    def _complete(
        self,
        verb: str,
        start: Callable[..., MPI.Request],
        calls: Iterable[tuple[Any, ...]],
        deadline_seconds: float | None,
        num_bytes: int = 0,
    ) -> None:
        """Start all `calls`, then wait for all; the one place where MPI's errors become ours."""
        if self._unusable is not None:
            raise CommError(f"rank {self.rank} of {self.size} cannot {verb}: {self._unusable}")
        limit = self.deadline_seconds if deadline_seconds is None else require_seconds(deadline_seconds)
        self._unusable = f"{verb} was interrupted"  # holds if anything leaves from here on
        self._num_verbs += 1
        spin_seconds = SPIN_SECONDS + num_bytes / BYTES_PER_SECOND
        pending: list[_Operation] = []
        try:
            for call in calls:
                pending.append((start(*call), call))  # one by one: a failing start must not lose those before
            in_time = self._poller.wait(
                lambda: _finish(pending), limit_seconds=limit, spin_seconds=spin_seconds, watch=self.watch
            )
        except self._mpi_error as error:
            self._unusable = f"{verb} failed: {error}"
            raise CommError(f"{verb} failed on rank {self.rank} of {self.size}: {error}") from error
        finally:
            _abandoned.extend(pending)
        if not in_time:
            self._unusable = f"{verb} did not end within {limit:g} s"
            raise DeadlineError(f"{self._unusable}; rank {self.rank} of {self.size} waited: {LIKELY_CAUSE}")
        self._unusable = None


def _as_bytes(buffer: Buffer) -> Buffer:
    """Return the same memory as flat bytes: MPI need not know a dtype that it does not add."""
    return buffer.reshape(-1).view(np.uint8)


def _finish(pending: list[_Operation]) -> bool:
    """Drop ended operations from the end of `pending`; each test moves all of them on."""
    while pending and pending[-1][0].Test():
        pending.pop()
    return not pending


def _has_ended(request: MPI.Request) -> bool:
    from mpi4py import MPI

    try:
        return bool(request.Test())
    except MPI.Exception:  # it failed: the next test finds it ended
        return False
