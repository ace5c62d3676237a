"""Sums of buckets that travel in a wire type, over the communicator that all ranks have."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elche.comm.base import Buffer, Comm
from elche.training.buckets import Bucket
from elche.training.reducer import Free
from elche.training.wire import WireFormat, WireSum


class WireReducer(Free):
    """Sums float32 buckets in the wire type; float64 ones, and what is no gradient, as they are.

    They go through host memory, a GPU's too: NCCL sums in the type that it sends.
    With error feedback what was rounded off in the last committed window is added to this one's.
    """

    def __init__(self, wire: WireFormat) -> None:
        """Owe nothing.

        Args:
            wire: its dtype is not None.
        """
        self._wire = wire
        self._owed: dict[int, Tensor] = {}  # by bucket, of the last committed window
        self._rounded: dict[int, Tensor] = {}  # of the one under way
        self._comm: Comm

    def over(self, comm: Comm) -> WireReducer:
        """Sum over `comm` from now on."""
        self._comm = comm
        return self

    def all_reduce(self, buckets: Sequence[Bucket], sends: Sequence[Buffer], sums: Sequence[Buffer]) -> None:
        """Sum over the ranks, see `Reducer`."""
        plain = [bucket for bucket in buckets if bucket.own_n.dtype is not torch.float32]
        for index, bucket in enumerate(buckets):
            if bucket.own_n.dtype is torch.float32:
                self._sum(index, bucket)
        owns, totals = [bucket.own_n.cpu() for bucket in plain], [bucket.sum_n.cpu() for bucket in plain]
        self._comm.all_reduce(
            [*(own_n.numpy() for own_n in owns), *sends], [*(total_n.numpy() for total_n in totals), *sums]
        )
        for bucket, total_n in zip(plain, totals, strict=True):
            bucket.sum_n.copy_(total_n)

    def settle(self) -> None:
        """Let what was rounded off be owed: the window counts."""
        self._owed, self._rounded = self._rounded, {}

    def _sum(self, index: int, bucket: Bucket) -> None:
        assert self._wire.dtype is not None
        own_n, sum_n = bucket.own_n.cpu(), bucket.sum_n.cpu()  # the CPU's own tensors, not copies
        if index in self._owed:
            own_n = own_n + self._owed[index]
        if self._wire.error_feedback:
            self._rounded[index] = torch.empty_like(own_n)
        WireSum(self._comm, self._wire.dtype).all_reduce(own_n, sum_n, self._rounded.get(index))
        if sum_n is not bucket.sum_n:
            bucket.sum_n.copy_(sum_n)
