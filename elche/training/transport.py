"""How messages get from rank to rank, as two verbs; NCCL's way has its own file.

Legend: `_b`, a message of bytes; `_wb`, one for each rank, or from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from elche.comm.base import Comm


class Transport(Protocol):
    """Carries messages between the ranks: all call the same verb, with messages of one length.

    Two that are equal reach the same ranks in the same way. What a verb returns holds until the next one. On
    a GPU, messages are sent and arrive in the order of the current stream.
    """

    @property
    def rank(self) -> int:
        """This rank's number."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def all_to_all(self, sent_wb: Tensor) -> Tensor:
        """Return in row w what rank w has for this one, its `sent_wb[rank]`.

        Args:
            sent_wb: uint8, a row for each rank.

        Returns:
            As many rows.

        Raises:
            CommError: some rank is lost, or what carries the messages failed.
        """
        ...

    def all_gather(self, sent_b: Tensor) -> Tensor:
        """Return every rank's message, in rank order.

        Args:
            sent_b: uint8, this rank's.

        Returns:
            A row from each rank.

        Raises:
            CommError: some rank is lost, or what carries the messages failed.
        """
        ...


@dataclass(frozen=True)
class HostTransport:
    """Over the communicator that all ranks have, for tensors on the CPU.

    Attributes:
        comm: the ranks.
    """

    comm: Comm

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.comm.size

    def all_to_all(self, sent_wb: Tensor) -> Tensor:
        """Return what each rank has for this one, see `Transport`."""
        return torch.from_numpy(self.comm.all_to_all(sent_wb.numpy()))

    def all_gather(self, sent_b: Tensor) -> Tensor:
        """Return every rank's message, see `Transport`."""
        return torch.from_numpy(self.comm.all_gather(sent_b.numpy()))


@dataclass(frozen=True)
class AloneTransport:
    """For a rank that is alone, wherever its tensors are."""

    rank: int = 0
    size: int = 1

    def all_to_all(self, sent_wb: Tensor) -> Tensor:
        """Return what this rank has for itself."""
        return sent_wb

    def all_gather(self, sent_b: Tensor) -> Tensor:
        """Return this rank's message."""
        return sent_b[None]
