"""`Comm` among some processes of MPI's world, by point-to-point messages: it outlives its members.

Why not a communicator of its own for every view: with Open MPI 5.0.11 `Revoke` of one made by
`Create_from_group` reaches another one on processes that have made a different number of them; a probe in a
second thread while one is made hangs the job; and a collective that was given up goes on writing to its
buffers. Here a new view needs no more than a new tag, and nothing is received into a caller's array: what a
member that was stopped sends when it wakes would end there. That costs one copy from the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, count, cycle, pairwise, takewhile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from elche.comm.base import (
    DEADLINE_SECONDS,
    Buffer,
    require_contiguous,
    require_members,
    require_pairs,
    require_root,
    require_rows,
)
from elche.comm.mpi_call import Call
from elche.comm.neighbours import Neighbours
from elche.comm.polling import Poller

if TYPE_CHECKING:
    from elche.comm.mpi_rendezvous import MpiRendezvous
    from elche.comm.mpi_wire import Planned

SHORT_BYTES = 1 << 16  # sums of no more are made by everybody from everybody's, in one step and not in two
BLOCK_BYTES = 1 << 21  # of what is longer; half and twice as much took 1.2 times as long, 10 MB at 2 ranks
BLOCKS_UNDER_WAY = 3
MOST_TABLES = 8  # kinds of short messages that are remembered
NOTHING, WORD = np.empty(0, np.uint8), np.empty((), np.uint8)
WORD_KIND = ((WORD.dtype, WORD.shape),)


class MpiDirectComm:
    """`Comm` between processes that a rendezvous has brought together; sums run over ranks in their order.

    After a verb has failed nothing is written to this rank's arrays, but others may read them until it
    revokes the communicator.

    Attributes:
        rendezvous: of this process.
        processes: by rank.
        name: what they call this.
        tag: of its messages.
        poller: how it waits.
        unusable: why, or None.
    """

    rendezvous: MpiRendezvous
    processes: list[int]
    name: str
    tag: int
    poller: Poller
    unusable: str | None

    def __init__(self, rendezvous: MpiRendezvous, processes: Sequence[int], name: str, tag: int) -> None:
        """Speak among `processes`, in this order.

        Args:
            rendezvous: of this process, one of them.
            processes: their numbers.
            name: what they call this.
            tag: of its messages, which no other communicator of theirs has.
        """
        self.rendezvous, self.processes, self.name, self.tag = rendezvous, list(processes), name, tag
        self.poller, self.unusable = Poller(), None
        self.deadline_seconds = DEADLINE_SECONDS
        self.watch: Callable[[], None] | None = None
        self.rank, self.size = self.processes.index(rendezvous.process), len(self.processes)
        self.hosts = [rendezvous.wire.hosts[process] for process in processes]
        near = Neighbours.of(self.hosts, self.rank)
        self.local_rank, self.local_size, self.cross_rank, self.cross_size = near
        self._others = [(self.rank + step) % self.size for step in range(1, self.size)]
        self._tables: dict[tuple[object, ...], _Table] = {}
        self._awaited: Planned = []  # of the last table that was used
        width = -(-BLOCK_BYTES // self.size // 16) * 16
        self._rooms = np.empty((BLOCKS_UNDER_WAY, self.size, width), np.uint8)

    def __del__(self) -> None:
        """Leave nothing behind."""
        self.retire()

    def all_gather(self, send: Buffer, *, deadline_seconds: float | None = None) -> Buffer:
        """Return every rank's `send`, stacked in rank order: shape `(size, *send.shape)`, same dtype."""
        require_contiguous("all_gather", send)
        with Call(self, "all_gather", deadline_seconds, send.nbytes * self.size) as call:
            if send.nbytes > SHORT_BYTES:
                rows: Buffer = np.empty((self.size, *send.shape), send.dtype)
                rows[self.rank] = send
                flat = rows.reshape(self.size, -1).view(np.uint8)
                sends = [flat[self.rank]] * self.size
                call.do_in_turns(self._exchange(call, sends, flat, piece) for piece in _pieces(flat[0]))
            else:
                table = self._table([send])
                table.own[0][...] = send
                call.run(table.requests)
                rows = table.rows[0].copy()
        return rows

    def all_reduce(
        self, sends: Sequence[Buffer], recvs: Sequence[Buffer], *, deadline_seconds: float | None = None
    ) -> None:
        """Sum `sends[i]` over the ranks into `recvs[i]`, for all i at once; `sends` stay as they were."""
        require_pairs(sends, recvs)
        num_bytes = sum([send.nbytes for send in sends])
        with Call(self, "all_reduce", deadline_seconds, num_bytes) as call:
            if num_bytes > SHORT_BYTES:
                call.do_in_turns(self._sum_block(call, *block) for block in self._blocks(sends, recvs))
            else:
                table = self._table(sends)
                for own, send in zip(table.own, sends, strict=True):
                    own[...] = send
                call.run(table.requests)
                for rows, recv in zip(table.rows, recvs, strict=True):
                    _sum(rows, recv)

    def all_to_all(self, send: Buffer, *, deadline_seconds: float | None = None) -> Buffer:
        """Return in row w what rank w has for this one, its `send[rank]`; `send` is `(size, ...)`."""
        require_rows(send, self.size)
        rows = np.empty_like(send)
        rows[self.rank] = send[self.rank]
        sends, flat = (array.reshape(self.size, -1).view(np.uint8) for array in (send, rows))
        with Call(self, "all_to_all", deadline_seconds, send.nbytes) as call:
            call.do_in_turns(self._exchange(call, sends, flat, piece) for piece in _pieces(flat[0]))
        return rows

    def broadcast(
        self, buffers: Sequence[Buffer], *, root: int, deadline_seconds: float | None = None
    ) -> None:
        """Overwrite `buffers` on every rank with those of rank `root`, in place."""
        require_root(root, self.size)
        require_contiguous("broadcast", *buffers)
        flats = [buffer.reshape(-1).view(np.uint8) for buffer in buffers]
        with Call(self, "broadcast", deadline_seconds, sum(flat.size for flat in flats)) as call:
            pieces = (flat[piece] for flat in flats for piece in _pieces(flat))
            call.do_in_turns(
                self._pass_on(call, piece, root, room.reshape(-1)[: piece.size])
                for piece, room in zip(pieces, cycle(self._rooms))
            )

    def agree(self, ok: bool, *, deadline_seconds: float | None = None) -> bool:
        """Return whether every rank said `ok`; nobody returns before everybody has spoken."""
        with Call(self, "agree", deadline_seconds, self.size) as call:
            table = self._tables.get(WORD_KIND) or self._table([WORD])
            table.own[0][...] = ok
            call.run(table.requests)
            return 0 not in table.rows[0].tolist()

    def absent(self) -> list[int]:
        """Return the ranks that have not come to the verb under way, as far as is known: if it is short."""
        awaited = zip(
            self._others, self._awaited, strict=False
        )  # what is received stands before what is sent
        return sorted(rank for rank, request in awaited if self.rendezvous.wire.outcome(request) is None)

    def beside(self, ranks: Sequence[int], name: str, *, deadline_seconds: float) -> MpiDirectComm:
        """Return another communicator of these ranks, in this order; they all call it, a name once."""
        members = [self.processes[rank] for rank in require_members(self.rank, ranks, self.size)]
        comm = self.rendezvous.connect(
            members, f"{self.name}/{name}", deadline_seconds=deadline_seconds, watch=self.watch
        )
        comm.watch, comm.deadline_seconds = self.watch, deadline_seconds
        return comm

    def revoke(self) -> None:
        """Make every verb under way and to come fail, on all ranks."""
        self.unusable = self.unusable or "it was revoked"
        self.rendezvous.revoke(self.name, self.processes)

    def close(self) -> None:
        """Refuse further verbs."""
        self.unusable = self.unusable or "it was closed"

    def abort(self, code: int) -> None:
        """End the whole job with exit code `code`, whatever the other ranks are doing."""
        self.rendezvous.abort(code)

    def retire(self) -> None:
        """Let what comes from now on be swept away."""
        planned = [request for table in self._tables.values() for request in table.requests]
        self._tables.clear()
        self.rendezvous.wire.retire(self.tag, self.processes, planned)

    def _table(self, like: Sequence[Buffer]) -> _Table:
        """Return the table for messages like these, from the last time: to plan one takes as long again."""
        kind = tuple([(array.dtype, array.shape) for array in like])
        if kind not in self._tables:
            if len(self._tables) == MOST_TABLES:
                self.rendezvous.wire.abandon(self._tables.pop(next(iter(self._tables))).requests)
            self._tables[kind] = self._plan_table(like)
        self._awaited = self._tables[kind].requests
        return self._tables[kind]

    def _plan_table(self, like: Sequence[Buffer]) -> _Table:
        stops = [*accumulate((-(-array.nbytes // 16) * 16 for array in like), initial=0)]
        packed = np.empty((self.size, stops[-1]), np.uint8)  # one message for all of a rank's arrays
        rows = [
            packed[:, start : start + array.nbytes].view(array.dtype).reshape(self.size, *array.shape)
            for start, array in zip(stops, like, strict=False)
        ]
        sends = [(packed[self.rank], self.processes[rank]) for rank in self._others]
        receives = [(packed[rank], self.processes[rank]) for rank in self._others]
        requests = self.rendezvous.wire.plan(sends, receives, self.tag)
        return _Table(rows, [row[self.rank, ...] for row in rows], requests)

    def _exchange(
        self, call: Call, sends: Sequence[Buffer] | Buffer, rows: Buffer, piece: slice
    ) -> Iterator[None]:
        """Send a piece of each rank's row, and receive that of one's own from each."""
        heard = call.receive((rows[rank, piece], rank) for rank in self._others)
        told = call.send((sends[rank][piece], rank) for rank in self._others)
        yield
        call.wait(heard)
        call.wait(told)

    def _blocks(self, sends: Sequence[Buffer], recvs: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
        """Yield what is summed at once, of a send and its recv, with room for a part of each rank's."""
        rooms = cycle(self._rooms)
        for send, recv in zip(sends, recvs, strict=True):
            flat_send, flat_recv = send.reshape(-1), recv.reshape(-1)
            for piece in _pieces(flat_send, self.size):
                yield flat_send[piece], flat_recv[piece], next(rooms).view(send.dtype)

    def _sum_block(self, call: Call, send: Buffer, recv: Buffer, room: Buffer) -> Iterator[None]:
        """Sum one part here and tell it the others, who sum theirs."""
        stops = [send.size * rank // self.size for rank in range(self.size + 1)]
        parts = [slice(start, stop) for start, stop in pairwise(stops)]
        own = parts[self.rank]
        shares = [row[: own.stop - own.start] for row in room]
        heard = call.receive((shares[rank], rank) for rank in self._others)
        told = call.send((send[parts[rank]], rank) for rank in self._others)
        yield
        call.wait(heard)
        shares[self.rank] = send[own]
        _sum(shares, recv[own])
        sums = [row[: part.stop - part.start] for row, part in zip(room, parts, strict=True)]
        heard = call.receive((sums[rank], rank) for rank in self._others)
        told += call.send((recv[own], rank) for rank in self._others)
        yield
        call.wait(heard)
        for rank in self._others:
            recv[parts[rank]] = sums[rank]
        call.wait(told)

    def _pass_on(self, call: Call, piece: Buffer, root: int, room: Buffer) -> Iterator[None]:
        """Receive a piece and pass it on, in a binomial tree with the root at 0; tell that it has come."""
        place = (self.rank - root) % self.size
        reach = 1 << place.bit_length()  # to the first that hears it from here; half as far to who tells it
        if place > 0:
            above = (self.rank - reach // 2) % self.size
            heard = call.receive([(room, above)])
            yield
            call.wait(heard)
            piece[:] = room
            call.send([(NOTHING, above)])  # else a root could fill the memory of one that is stopped
        steps = takewhile(lambda step: place + step < self.size, (reach << more for more in count()))
        below = [(self.rank + step) % self.size for step in steps]
        told = call.send((piece, rank) for rank in below)
        heard = call.receive((NOTHING, rank) for rank in below)
        yield
        call.wait(told)
        call.wait(heard)


class _Table(NamedTuple):
    """What each rank says: for each array a row of each rank, this one's own, and how they are exchanged."""

    rows: list[Buffer]
    own: list[Buffer]
    requests: Planned


def _pieces(flat: Buffer, num_parts: int = 1) -> Iterator[slice]:
    """Yield the pieces of at most BLOCK_BYTES that `flat` goes in, but for the last of equal parts."""
    step = BLOCK_BYTES // flat.itemsize // num_parts * num_parts
    return (slice(start, start + step) for start in range(0, flat.size, step))


def _sum(rows: Sequence[Buffer] | Buffer, out: Buffer) -> None:
    """Sum in rank order: the same bits on every rank."""
    if len(rows) == 1:
        out[...] = rows[0]
        return
    np.add(rows[0], rows[1], out=out)
    for row in rows[2:]:
        np.add(out, row, out=out)
