"""Sums of buckets in memory that the ranks of a host share: on one host nothing is sent.

Each rank's `own_n` lies where the others of its host can read it, and `sum_n` is one for all of them. Once
every rank has done its batches, which the exchange tells, the host's r-th rank adds up the r-th part of each
bucket, in rank order. Where there are more hosts, their r-th ranks then sum that part over MPI, all parts at
once. When every rank knows that all have, the sum is whole, and is read where it lies.

Each view has a sum of its own: a rank that was stopped while it added, and wakes in another view, writes to
memory that nobody looks at any more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate

import torch
from torch import Tensor

from elche.comm.base import Buffer, Comm, all_gather_bytes
from elche.comm.shm import Offer, Segment, Ticket
from elche.errors import CommError
from elche.training.buckets import Bucket
from elche.training.reducer import Plain

ALIGN_BYTES = 64
CHUNK_BYTES = 256 * 1024  # what is added to stays in a core's own cache


class Home:
    """One rank's buckets, in memory that others may read, for as long as this lives."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        """Leave them where they are, until `move_in`.

        Args:
            buckets: this rank's, on the CPU.
        """
        self.buckets = buckets
        self.places = _places(buckets)
        self._offer: Offer | None = None

    def move_in(self) -> Ticket:
        """Move the buckets, once; return where others find them.

        Returns:
            The same each time.

        Raises:
            OSError: the system has no such memory.
        """
        if self._offer is None:
            offer = Offer(self.places[-1])
            for bucket, own_n in zip(self.buckets, self.laid_in(Segment.attach(offer.ticket)), strict=True):
                bucket.move_own_(own_n)
            self._offer = offer
        return self._offer.ticket

    def laid_in(self, segment: Segment) -> list[Tensor]:
        """Return what is, or is to be, each bucket's in a segment that is laid out as this one's.

        Args:
            segment: some rank's, or that of the sum.

        Returns:
            One tensor per bucket.
        """
        return [
            torch.from_numpy(segment.data[place : place + bucket.own_n.nbytes]).view(bucket.own_n.dtype)
            for bucket, place in zip(self.buckets, self.places, strict=False)
        ]


class SharedReducer(Plain):
    """For ranks with their buckets on the CPU, as many on each host."""

    def __init__(self, comm: Comm, home: Home, name: str) -> None:
        """Prepare; nothing is shared yet.

        Args:
            comm: the ranks, see `can_share`.
            home: of this rank's buckets.
            name: not used before with these ranks.
        """
        self._comm, self._home, self._name = comm, home, name
        self._near = _ranks_of(comm, comm.hosts[comm.rank])
        self._place = self._near.index(comm.rank)
        self._over_hosts: Comm | None = None
        self._near_sums: list[Buffer] = []  # this rank's part of each bucket, summed over this host
        self._sums: list[Buffer] = []  # and over all hosts
        self._chunks: list[tuple[Tensor, list[Tensor]]] = []  # of this host's sum, and of what each rank has

    def connect(self) -> str | None:
        """Find the buckets of this host's other ranks, and make room for the sum; collective.

        Returns:
            None; or why not, the same on all ranks.

        Raises:
            CommError: a rank is lost.
        """
        with ExitStack() as open_offers:
            offered, reason = self._offer(open_offers)
            words = all_gather_bytes(self._comm, offered)
            segments: list[Segment] = []
            if all(words):
                segments, reason = _attached([json.loads(words[rank]) for rank in self._near])
            reasons = all_gather_bytes(self._comm, reason.encode())
        for rank, word in enumerate(reasons):
            if word:
                return f"rank {rank}: {word.decode()}"
        self._lay_out(segments[0], segments[1:])
        self._reach_hosts()
        return None

    def all_reduce(
        self,
        buckets: Sequence[Bucket],  # noqa: ARG002 - those it was made for
        sends: Sequence[Buffer],
        sums: Sequence[Buffer],
        *,
        stands: bool,  # noqa: ARG002 - nothing was begun early
    ) -> None:
        """Add up this rank's part, see `Reducer`."""
        for sum_n, (first_n, *others) in self._chunks:
            if not others:
                sum_n.copy_(first_n)
                continue
            torch.add(first_n, others[0], out=sum_n)
            for own_n in others[1:]:
                sum_n.add_(own_n)
        if self._over_hosts is not None:
            self._over_hosts.all_reduce(self._near_sums, self._sums)
        # Nobody returns from either before everybody has come.
        if sends:
            self._comm.all_reduce(sends, sums)
        elif not self._comm.agree(True):
            raise CommError("not all ranks have added up their parts")

    def retire(self) -> None:
        """Let nobody wait for this rank on another host."""
        if self._over_hosts is not None:
            self._over_hosts.revoke()

    def end(self) -> None:
        """Let the sum be this rank's own again."""
        for bucket in self._home.buckets:
            bucket.place_sum(torch.zeros_like(bucket.own_n), is_shared=False)
        self._chunks, self._near_sums, self._sums = [], [], []
        self.close()

    def close(self) -> None:
        """Give back what leads to other hosts."""
        if self._over_hosts is not None:
            self._over_hosts.close()

    def _offer(self, open_offers: ExitStack) -> tuple[bytes, str]:
        """Return where this rank's buckets are, and on a host's first rank the sum's; and why not."""
        try:
            tickets = [self._home.move_in()]
            if self._place == 0:
                total = Offer(self._home.places[-1])
                open_offers.callback(total.close)
                tickets.append(total.ticket)
        except (OSError, ValueError) as error:
            return b"", str(error)
        return json.dumps(tickets).encode(), ""

    def _lay_out(self, total: Segment, owns: Sequence[Segment]) -> None:
        is_sole_host = len(self._near) == self._comm.size
        laid = [self._home.laid_in(segment) for segment in (total, *owns)]
        for bucket, sum_n, *owns_wn in zip(self._home.buckets, *laid, strict=True):
            bucket.place_sum(sum_n, is_shared=True)
            mine = _part(sum_n, self._place, len(self._near))
            total_n = sum_n[mine]
            near_n = total_n if is_sole_host else torch.empty_like(total_n)
            self._near_sums.append(near_n.numpy())
            self._sums.append(total_n.numpy())
            parts = [own_n[mine] for own_n in owns_wn]
            self._chunks += [
                (near_n[chunk], [part_n[chunk] for part_n in parts]) for chunk in _chunks(near_n)
            ]

    def _reach_hosts(self) -> None:
        """Make the communicator of the ranks that have this one's place on their hosts."""
        hosts = dict.fromkeys(self._comm.hosts)
        if len(hosts) > 1:
            peers = [_ranks_of(self._comm, host)[self._place] for host in hosts]
            limit = self._comm.deadline_seconds
            self._over_hosts = self._comm.beside(peers, f"{self._name}-{self._place}", deadline_seconds=limit)


def can_share(comm: Comm) -> bool:
    """Return whether every host has several ranks, and as many as any other.

    Args:
        comm: the ranks.

    Returns:
        The same on all ranks.
    """
    counts = {comm.hosts.count(host) for host in comm.hosts}
    return len(counts) == 1 and counts != {1}


def _ranks_of(comm: Comm, host: int) -> list[int]:
    return [rank for rank, at in enumerate(comm.hosts) if at == host]


def _attached(tickets: Sequence[Sequence[Sequence[object]]]) -> tuple[list[Segment], str]:
    """Return the segment of the sum and then every rank's; or why not."""
    (of_rank_0, of_sum), *others = tickets
    try:
        found = [Ticket(*ticket) for ticket in (of_sum, of_rank_0, *(ticket for (ticket,) in others))]  # type: ignore[arg-type]
        return [Segment.attach(ticket) for ticket in found], ""
    except (OSError, ValueError) as error:
        return [], str(error)


def _places(buckets: Sequence[Bucket]) -> list[int]:
    """Return where each bucket begins in a segment, in bytes, and where the last one ends."""
    sizes = (-(-bucket.own_n.nbytes // ALIGN_BYTES) * ALIGN_BYTES for bucket in buckets)
    return list(accumulate(sizes, initial=0))


def _part(bucket_n: Tensor, place: int, num_places: int) -> slice:
    """Return which part of a bucket is one rank's.

    >>> _part(torch.zeros(100), 1, 3)
    slice(48, 96, None)
    """
    numel, align = bucket_n.numel(), ALIGN_BYTES // bucket_n.itemsize
    length = -(-numel // (num_places * align)) * align
    return slice(min(numel, place * length), min(numel, (place + 1) * length))


def _chunks(part_n: Tensor) -> list[slice]:
    length = CHUNK_BYTES // part_n.itemsize
    return [slice(at, at + length) for at in range(0, part_n.numel(), length)]
