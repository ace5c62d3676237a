"""What sums the buckets over the ranks: NCCL; nothing, where a rank is alone; the host, in its own file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from elche.comm.base import Buffer
from elche.comm.nccl import NcclComm, Part
from elche.training import streams
from elche.training.buckets import Bucket


class Reducer(Protocol):
    """Sums the buckets of all ranks."""

    def all_reduce(self, buckets: Sequence[Bucket], sends: Sequence[Buffer], sums: Sequence[Buffer]) -> None:
        """Sum `own_n` of each bucket over the ranks into its `sum_n`, and with them each send into its sum.

        Args:
            buckets: `own_n` stays as it was. Work on `sum_n` in the current stream comes after the sum.
            sends: arrays on host memory.
            sums: of the same shapes and dtypes.

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


class Free:
    """A reducer that has nothing to give back: who gives up a communicator revokes it."""

    def retire(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class NcclReducer:
    """By NCCL, all buckets in one group in the current stream; what lies on host memory over the host's way.

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

    def all_reduce(self, buckets: Sequence[Bucket], sends: Sequence[Buffer], sums: Sequence[Buffer]) -> None:
        """Sum over the ranks, see `Reducer`."""
        try:
            parts = [_part(bucket) for bucket in buckets if bucket.own_n.numel()]
            self.comm.launch(parts, streams.current_handle(self._device))
            is_done = streams.mark(self._device)
            if sends:
                self.comm.host.all_reduce(sends, sums)
            self.comm.wait(is_done)
        except BaseException:
            self.retire()
            raise
        self.has_reduced = True

    def retire(self) -> None:
        """Begin to abort."""
        self.comm.retire()

    def end(self) -> None:
        """Wait until it is aborted."""
        self.comm.end()

    def close(self) -> None:
        """Abort, and wait for it only for a moment."""
        self.comm.close()


class AloneReducer(Free):
    """For a rank that is alone: its buckets stay on their GPU."""

    def all_reduce(self, buckets: Sequence[Bucket], sends: Sequence[Buffer], sums: Sequence[Buffer]) -> None:
        """Take this rank's part for the sum."""
        for bucket in buckets:
            bucket.sum_n.copy_(bucket.own_n)
        for send, total in zip(sends, sums, strict=True):
            total[...] = send


def _part(bucket: Bucket) -> Part:
    own_n, sum_n = bucket.own_n, bucket.sum_n
    return Part(own_n.data_ptr(), sum_n.data_ptr(), own_n.numel(), str(own_n.dtype).removeprefix("torch."))
