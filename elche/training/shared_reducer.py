"""Sums of buckets in memory that all ranks share: nothing is sent.

Each rank's `own_n` lies where all can read it, and `sum_n` is one for all. Once every rank has done its
batches, which the exchange tells, rank r adds up the r-th part of each bucket, in rank order. Once all agree
that they have, the sum is whole, and is read where it lies.

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
    """For ranks of one host, with their buckets on the CPU."""

    is_whole = False

    def __init__(self, comm: Comm, home: Home) -> None:
        """Prepare; nothing is shared yet.

        Args:
            comm: the ranks.
            home: of this rank's buckets.
        """
        self._comm, self._home = comm, home
        self._chunks: list[tuple[Tensor, list[Tensor]]] = []  # of the sum, and of what every rank has for it

    def connect(self) -> str | None:
        """Find the other ranks' buckets, and make room for the sum; collective.

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
                segments, reason = _attached([json.loads(word) for word in words])
            reasons = all_gather_bytes(self._comm, reason.encode())
        for rank, word in enumerate(reasons):
            if word:
                return f"rank {rank}: {word.decode()}"
        self._lay_out(segments[0], segments[1:])
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
        if sends:
            self._comm.all_reduce(sends, sums)

    def end(self) -> None:
        """Let the sum be this rank's own again."""
        for bucket in self._home.buckets:
            bucket.place_sum(torch.zeros_like(bucket.own_n), is_shared=False)
        self._chunks = []

    def _offer(self, open_offers: ExitStack) -> tuple[bytes, str]:
        """Return where this rank's buckets are, and on rank 0 the sum's; and why not."""
        try:
            tickets = [self._home.move_in()]
            if self._comm.rank == 0:
                total = Offer(self._home.places[-1])
                open_offers.callback(total.close)
                tickets.append(total.ticket)
        except (OSError, ValueError) as error:
            return b"", str(error)
        return json.dumps(tickets).encode(), ""

    def _lay_out(self, total: Segment, owns: Sequence[Segment]) -> None:
        laid = [self._home.laid_in(segment) for segment in (total, *owns)]
        for bucket, sum_n, *owns_wn in zip(self._home.buckets, *laid, strict=True):
            bucket.place_sum(sum_n, is_shared=True)
            self._chunks += [
                (sum_n[part], [own_n[part] for own_n in owns_wn])
                for part in _parts(sum_n.numel(), sum_n.itemsize, self._comm.rank, self._comm.size)
            ]


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


def _parts(numel: int, itemsize: int, rank: int, size: int) -> list[slice]:
    """Cut a rank's part of a bucket into chunks.

    >>> _parts(100, 4, 1, 3)
    [slice(48, 96, None)]
    """
    align, chunk = ALIGN_BYTES // itemsize, CHUNK_BYTES // itemsize
    part = -(-numel // (size * align)) * align
    begin, end = min(numel, rank * part), min(numel, (rank + 1) * part)
    return [slice(at, min(end, at + chunk)) for at in range(begin, end, chunk)]
