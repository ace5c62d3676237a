"""Sums of buckets through host memory, over the ranks' own communicator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from elche.comm.base import Buffer, Comm
from elche.comm.polling import Poller
from elche.errors import DeadlineError
from elche.training import streams
from elche.training.buckets import Bucket
from elche.training.reducer import Plain
from elche.training.streams import SideStream
from elche.training.transport import HostTransport
from elche.training.wire import Wire


class HostReducer(Plain):
    """Sums over the communicator that all ranks have, which takes host memory.

    Where no rank has its buckets on a GPU, all go at once. Else a GPU's go through pinned memory, one by one,
    the last one first: bucket k - 1 comes out while bucket k is summed. One that is begun early comes out
    while backward goes on.
    """

    def __init__(self, comm: Comm, *, one_by_one: bool, wire: Wire | None = None) -> None:
        """Sum over `comm`.

        Args:
            comm: the ranks.
            one_by_one: whether some rank has its buckets on a GPU, or they travel on a wire.
            wire: for float32 buckets; None: all travel as they are.
        """
        self._comm, self._one_by_one, self._wire = comm, one_by_one, wire
        self._transport = HostTransport(comm)
        self._staging: _Staging | None = None

    def begin(self, bucket: Bucket) -> None:
        """Begin early to copy it out, see `Reducer`."""
        if self._staging is not None:
            self._staging.fetch_early(bucket)

    def begin_rest(self, buckets: Sequence[Bucket], *, stands: bool) -> None:  # noqa: ARG002 - in all_reduce
        """Forget what was copied in vain, see `Reducer`."""
        if self._staging is not None and not stands:
            self._staging.forget()

    def all_reduce(
        self,
        buckets: Sequence[Bucket],
        sends: Sequence[Buffer],
        sums: Sequence[Buffer],
        *,
        stands: bool,  # noqa: ARG002 - a copy that does not is forgotten, whatever the others say
    ) -> None:
        """Sum over the ranks, see `Reducer`."""
        if not self._one_by_one:
            pairs = [bucket.arrays for bucket in buckets if bucket.arrays is not None]
            owns, totals = [own for own, _ in pairs], [total for _, total in pairs]
            self._comm.all_reduce([*owns, *sends], [*totals, *sums])
            return
        if self._staging is None:
            self._staging = _Staging(buckets)
        with self._staging.fetched() as stages:
            for stage in reversed(stages):
                self._await(stage.is_here)
                if self._wire is not None and self._wire.carries(stage.own_n):
                    self._wire.all_reduce(self._transport, stage.bucket.indices, stage.own_n, stage.sum_n)
                else:
                    self._comm.all_reduce([_array(stage.own_n)], [_array(stage.sum_n)])
                stage.bring_back()
            if sends:
                self._comm.all_reduce(sends, sums)

    def _await(self, is_here: Callable[[], bool]) -> None:
        limit, watch = self._comm.deadline_seconds, self._comm.watch
        if not Poller().wait(is_here, limit_seconds=limit, watch=watch):
            raise DeadlineError(
                f"a copy from the GPU of rank {self._comm.rank} did not end within {limit:g} s"
            )


class _Staging:
    """Buckets in host memory, and the stream of the copies."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._side = streams.beside(buckets[0].own_n.device)
        self._stages = [_Stage(bucket, self._side) for bucket in buckets]

    @contextmanager
    def fetched(self) -> Iterator[list[_Stage]]:
        """Begin to copy all out, the last first; in the end the current stream waits for what came back."""
        side = self._side
        if side is None:
            yield self._stages
            return
        side.follow()
        for stage in reversed(self._stages):
            if not stage.is_early:
                stage.fetch(stage.bucket.own_n)
        self.forget()  # after a failure all is copied again
        try:
            yield self._stages
        finally:  # also where it failed: a second try must not meet a copy of the first
            side.lead()

    def fetch_early(self, bucket: Bucket) -> None:
        """Begin to copy out what a bucket is going to hold."""
        if self._side is not None:
            stage = next(stage for stage in self._stages if stage.bucket is bucket)
            self._side.follow()
            stage.fetch(bucket.sum_n)
            stage.is_early = True

    def forget(self) -> None:
        """Let nothing count that was copied early."""
        for stage in self._stages:
            stage.is_early = False


class _Stage:
    """One bucket in host memory: pinned, where the bucket is on a GPU; else the bucket itself."""

    def __init__(self, bucket: Bucket, side: SideStream | None) -> None:
        self.bucket, self._side, self.is_early = bucket, side, False
        self.own_n, self.sum_n = bucket.own_n, bucket.sum_n
        if side is not None:
            self.own_n, self.sum_n = side.pinned(bucket.own_n), side.pinned(bucket.sum_n)
        self.is_here: Callable[[], bool] = lambda: True

    def fetch(self, source_n: Tensor) -> None:
        """Begin to copy what this rank has summed."""
        if self._side is not None:
            self.is_here = self._side.copy(self.own_n, source_n)

    def bring_back(self) -> None:
        """Begin to copy what all ranks have summed to where it belongs."""
        if self._side is not None:
            self._side.copy(self.bucket.sum_n, self.sum_n)


def _array(tensor: Tensor) -> Buffer:
    array: Buffer = tensor.numpy()
    return array
