"""Compressed buckets over NCCL: they never leave the GPUs, and all is put in the stream that is current."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elche.comm.nccl import NcclComm
from elche.comm.nccl_parts import Gather, Part, Receive, Send
from elche.training import streams
from elche.training.buckets import Bucket
from elche.training.reducer import NcclReducer
from elche.training.wire import Wire


class NcclTransport:
    """Carries messages by NCCL, see `Transport`; nothing waits for the device.

    Attributes:
        rank: this rank's number.
        size: how many ranks there are.
    """

    rank: int
    size: int

    def __init__(self, comm: NcclComm, device: torch.device) -> None:
        """Carry over `comm`.

        Args:
            comm: the ranks.
            device: of the messages.
        """
        self.rank, self.size = comm.host.rank, comm.host.size
        self._comm, self._device = comm, device
        self._rooms: dict[int, Tensor] = {}  # by length of a message; kept, for NCCL may still write there

    def all_to_all(self, sent_wb: Tensor) -> Tensor:
        """Return what each rank has for this one, see `Transport`."""
        got_wb = self._room(sent_wb.shape[1])
        rows = enumerate(zip(sent_wb, got_wb, strict=True))
        parts = [part for peer, pair in rows for part in _exchange(*pair, peer)]
        self._comm.launch(parts, streams.current_handle(self._device))
        return got_wb

    def all_gather(self, sent_b: Tensor) -> Tensor:
        """Return every rank's message, see `Transport`."""
        got_wb = self._room(len(sent_b))
        part = Gather(sent_b.data_ptr(), got_wb.data_ptr(), len(sent_b))
        self._comm.launch([part], streams.current_handle(self._device))
        return got_wb

    def _room(self, num_bytes: int) -> Tensor:
        if num_bytes not in self._rooms:
            shape = self.size, num_bytes
            self._rooms[num_bytes] = torch.empty(shape, dtype=torch.uint8, device=self._device)
        return self._rooms[num_bytes]


class NcclWireReducer(NcclReducer):
    """By NCCL, float32 buckets on a wire; double precision as it is."""

    def __init__(self, comm: NcclComm, device: torch.device, wire: Wire) -> None:
        """Sum over `comm`.

        Args:
            comm: the ranks.
            device: of the buckets.
            wire: for float32 buckets.
        """
        super().__init__(comm, device)
        self._wire, self._transport = wire, NcclTransport(comm, device)

    def _launch(self, pairs: Sequence[tuple[Tensor, Bucket]]) -> None:
        for own_n, bucket in pairs:
            if self._wire.carries(own_n):
                self._wire.all_reduce(self._transport, bucket.indices, own_n, bucket.sum_n)
        others = [pair for pair in pairs if not self._wire.carries(pair[0])]
        if others:
            super()._launch(others)


def _exchange(sent_b: Tensor, got_b: Tensor, peer: int) -> tuple[Part, Part]:
    return Send(sent_b.data_ptr(), len(sent_b), peer), Receive(got_b.data_ptr(), len(got_b), peer)
