"""What sums the buckets over the ranks: NCCL; nothing, where one is alone. Others have files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from elche.comm.base import Buffer
from elche.comm.nccl import NcclComm
from elche.comm.nccl_parts import Sum
from elche.training import streams
from elche.training.buckets import Bucket
from elche.training.transport import AloneTransport
from elche.training.wire import Wire


class Reducer(Protocol):
    """Sums the buckets of all ranks."""

    def begin(self, bucket: Bucket) -> None:
        """Begin early with a bucket whose `sum_n` holds what its `own_n` is going to; does not wait.

        Args:
            bucket: the last one that has not been begun with.

        Raises:
            CommError: some rank is lost, or what carries the sums failed.
        """
        ...

    def begin_rest(self, buckets: Sequence[Bucket], *, stands: bool) -> None:
        """Begin with what was not begun early; called in every window once this rank has done its batches.

        Args:
            buckets: all.
            stands: whether what was begun early on this rank was as `own_n` is now.

        Raises:
            CommError: some rank is lost, or what carries the sums failed.
        """
        ...

    def all_reduce(
        self, buckets: Sequence[Bucket], sends: Sequence[Buffer], sums: Sequence[Buffer], *, stands: bool
    ) -> None:
        """Sum `own_n` of each bucket over the ranks into its `sum_n`, and with them each send into its sum.

        Args:
            buckets: `own_n` stays as it was. Work on `sum_n` in the current stream comes after the sum.
            sends: arrays on host memory.
            sums: of the same shapes and dtypes.
            stands: whether what was begun early stands on all ranks.

        Raises:
            CommError: some rank is lost, or what carries the sums failed.
        """
        ...

    def retire(self) -> None:
        """Begin to give back what stands between this rank and the next view; does not wait."""
        ...

    def end(self) -> None:
        """Wait until it is given back."""
        ...

    def close(self) -> None:
        """Wait for that only for a moment: this process ends."""
        ...


class Plain:
    """A reducer that begins nothing early, and has nothing to give back: a communicator is revoked."""

    def begin(self, bucket: Bucket) -> None:
        """Do nothing."""

    def begin_rest(self, buckets: Sequence[Bucket], *, stands: bool) -> None:
        """Do nothing."""

    def retire(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class NcclReducer:
    """By NCCL; what lies on host memory over the host's way.

    A communicator's first sum is of all buckets in one group, in the current stream. Then each bucket goes
    as soon as it can, in a stream beside it: every rank begins with all of them, in one order, before it
    hears of the others. Where what was begun does not stand on some rank, all sum again in one group.

    Attributes:
        comm: the ranks.
        has_reduced: whether it has ever summed.
    """

    comm: NcclComm
    has_reduced: bool

    def __init__(self, comm: NcclComm, device: torch.device) -> None:
        """Sum over `comm`.

        Args:
            comm: the ranks.
            device: of the buckets.
        """
        self.comm, self._device, self.has_reduced = comm, device, False
        side = streams.beside(device)
        assert side is not None
        self._side = side
        self._num_begun, self._is_begun = 0, False

    def begin(self, bucket: Bucket) -> None:
        """Begin early, see `Reducer`."""
        self._launch_beside(bucket.sum_n, bucket)
        self.comm.attend()  # the script may wait for the device before it comes to step()

    def begin_rest(self, buckets: Sequence[Bucket], *, stands: bool) -> None:  # noqa: ARG002 - all ranks say
        """Begin with the rest, see `Reducer`."""
        self.comm.refuse_aborted()  # since a call failed in backward, which does not say so
        for bucket in reversed(buckets[: len(buckets) - self._num_begun]):
            self._launch_beside(bucket.own_n, bucket)
        self._is_begun = True

    def all_reduce(
        self, buckets: Sequence[Bucket], sends: Sequence[Buffer], sums: Sequence[Buffer], *, stands: bool
    ) -> None:
        """Sum over the ranks, see `Reducer`."""
        try:
            if self._is_begun:
                self._side.lead()
            if not (self._is_begun and stands):
                self._launch([(bucket.own_n, bucket) for bucket in buckets])
            is_done = streams.mark(self._device)
            if sends:
                self.comm.host.all_reduce(sends, sums)
            self.comm.wait(is_done)
        except BaseException:
            self.retire()
            raise
        self._num_begun, self._is_begun, self.has_reduced = 0, False, True

    def _launch_beside(self, own_n: Tensor, bucket: Bucket) -> None:
        self._num_begun += 1
        try:
            self._side.follow()
            self._side.keep(bucket.own_n, bucket.sum_n)
            with self._side.entered():
                self._launch([(own_n, bucket)])
        except BaseException:  # the others' next calls would meet those of another bucket
            self.retire()
            raise

    def _launch(self, pairs: Sequence[tuple[Tensor, Bucket]]) -> None:
        """Begin to sum each tensor, what a bucket holds or will hold, into `sum_n`, in the current stream."""
        parts = [_part(own_n, bucket.sum_n) for own_n, bucket in pairs if own_n.numel()]
        self.comm.launch(parts, streams.current_handle(self._device))

    def retire(self) -> None:
        """Begin to abort."""
        self.comm.retire()

    def end(self) -> None:
        """Wait until it is aborted; what comes in the current stream waits for what was behind it."""
        self.comm.end()
        self._side.lead()

    def close(self) -> None:
        """Abort, and wait for it only for a moment."""
        self.comm.close()


class AloneReducer(Plain):
    """For a rank that is alone: its buckets stay where they are, and are rounded as among others."""

    def __init__(self, wire: Wire | None = None) -> None:
        """Sum nothing.

        Args:
            wire: for float32 buckets; None: they stay as they are.
        """
        self._wire = wire

    def all_reduce(
        self,
        buckets: Sequence[Bucket],
        sends: Sequence[Buffer],
        sums: Sequence[Buffer],
        *,
        stands: bool,  # noqa: ARG002 - nothing was begun early
    ) -> None:
        """Take this rank's part for the sum."""
        for bucket in buckets:
            if self._wire is not None and self._wire.carries(bucket.own_n):
                self._wire.all_reduce(AloneTransport(), bucket.indices, bucket.own_n, bucket.sum_n)
            else:
                bucket.sum_n.copy_(bucket.own_n)
        for send, total in zip(sends, sums, strict=True):
            total[...] = send


def _part(own_n: Tensor, sum_n: Tensor) -> Sum:
    return Sum(own_n.data_ptr(), sum_n.data_ptr(), own_n.numel(), str(own_n.dtype).removeprefix("torch."))
