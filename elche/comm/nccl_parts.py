"""What a group of NCCL's calls is made of: each part is one call, on raw pointers."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class Part(Protocol):
    """One call of a group."""

    def put(self, nccl: Any, raw: Any, stream: int) -> None:
        """Make the call; what it asks for begins when the group ends.

        Args:
            nccl: CuPy's `cuda.nccl`.
            raw: CuPy's communicator.
            stream: handle of a CUDA stream.
        """
        ...


class Sum(NamedTuple):
    """An array to sum over the ranks.

    Attributes:
        send: address of what is summed.
        recv: address of the sum; the same, or elsewhere.
        num_elements: how many numbers.
        dtype: "float32" or "float64".
    """

    send: int
    recv: int
    num_elements: int
    dtype: str

    def put(self, nccl: Any, raw: Any, stream: int) -> None:
        """Make the call, see `Part`."""
        dtype = {"float32": nccl.NCCL_FLOAT32, "float64": nccl.NCCL_FLOAT64}[self.dtype]
        raw.allReduce(self.send, self.recv, self.num_elements, dtype, nccl.NCCL_SUM, stream)


class Send(NamedTuple):
    """Bytes for one rank, which takes them by a `Receive` in its own group; a rank may be its own peer.

    Attributes:
        address: of the bytes.
        num_bytes: how many.
        peer: whose they are.
    """

    address: int
    num_bytes: int
    peer: int

    def put(self, nccl: Any, raw: Any, stream: int) -> None:
        """Make the call, see `Part`."""
        raw.send(self.address, self.num_bytes, nccl.NCCL_UINT8, self.peer, stream)


class Receive(NamedTuple):
    """Bytes from one rank.

    Attributes:
        address: where they go.
        num_bytes: how many.
        peer: who sends them.
    """

    address: int
    num_bytes: int
    peer: int

    def put(self, nccl: Any, raw: Any, stream: int) -> None:
        """Make the call, see `Part`."""
        raw.recv(self.address, self.num_bytes, nccl.NCCL_UINT8, self.peer, stream)


class Gather(NamedTuple):
    """Bytes of every rank, for all.

    Attributes:
        send: address of this rank's.
        recv: where all go, in rank order.
        num_bytes: how many each has.
    """

    send: int
    recv: int
    num_bytes: int

    def put(self, nccl: Any, raw: Any, stream: int) -> None:
        """Make the call, see `Part`."""
        raw.allGather(self.send, self.recv, self.num_bytes, nccl.NCCL_UINT8, stream)
