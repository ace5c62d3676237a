"""What `MpiComm` needs for a second thread: a communicator of its own, and word of who has not come.

A collective of MPI's does not tell whom it waits for. A rank that waits long says so to all others, in a
message beside the collective; who has not said it has not come, or not long ago.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

TAG = 1  # of what ranks that wait say


class Spare:
    """A duplicate of a communicator, for those that are made beside it."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        """Keep `comm`, which nobody else uses."""
        self._comm, self._is_free = comm, True

    def make(self, members: Sequence[int], name: str) -> MPI.Intracomm:
        """Return a communicator of these ranks; of all of them, at first, without waiting for anybody.

        Args:
            members: its ranks; just these call this, and in one thread.
            name: of the communicator; threads may make several at once.

        Returns:
            The communicator.
        """
        from mpi4py import MPI

        if self._is_free and list(members) == list(range(self._comm.size)):
            self._is_free = False
            return self._comm
        group = self._comm.Get_group().Incl(members)
        tag = zlib.crc32(name.encode()) % cast(int, self._comm.Get_attr(MPI.TAG_UB))
        return self._comm.Create_group(group, tag)


class Attendance:
    """Who waits in which verb of a communicator, told in messages that no collective meets."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        """Speak over `comm`, beside its collectives."""
        self._comm, self._told = comm, -1
        self._others = [rank for rank in range(comm.size) if rank != comm.rank]
        self._newest = dict.fromkeys(self._others, -1)
        self._sends: list[tuple[MPI.Request, np.ndarray]] = []

    def absent(self, verb: int) -> list[int]:
        """Tell, once, that this rank waits in a verb; return the ranks that have not told so.

        Args:
            verb: its number, the same on all ranks.

        Returns:
            The ranks.
        """
        if self._told < verb:
            self._told = verb
            self._sends = [(request, held) for request, held in self._sends if not request.Test()]
            number = np.array([verb], np.int64)
            self._sends += [(self._comm.Isend(number, rank, TAG), number) for rank in self._others]
        for rank in self._others:
            while self._comm.Iprobe(rank, TAG):
                number = np.empty(1, np.int64)
                self._comm.Recv(number, rank, TAG)
                self._newest[rank] = int(number[0])
        return [rank for rank in self._others if self._newest[rank] < verb]
