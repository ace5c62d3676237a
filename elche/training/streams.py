"""CUDA streams as the sum of buckets needs them: a place to put work in, a way to ask whether it is done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor


class Gpu(NamedTuple):
    """A rank's GPU.

    Attributes:
        number: in this process.
        identity: the same for two ranks where they share it.
        cuda: version of CUDA that PyTorch was built for; None: for none.
    """

    number: int
    identity: str
    cuda: str | None


def is_gpu(device: torch.device) -> bool:
    """Return whether there are streams on a device."""
    return device.type != "cpu"


def gpu_of(device: torch.device) -> Gpu:
    """Return what a GPU is known by."""
    number = torch.cuda.current_device() if device.index is None else device.index
    return Gpu(number, str(torch.cuda.get_device_properties(number).uuid), torch.version.cuda)


def is_capturing(device: torch.device) -> bool:
    """Return whether what is put in the current stream becomes part of a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def current_handle(device: torch.device) -> int:
    """Return the handle of the stream that PyTorch works in."""
    return torch.cuda.current_stream(device).cuda_stream


def mark(device: torch.device) -> Callable[[], bool]:
    """Return what asks whether all that is in the current stream until now is done."""
    return _mark(torch.cuda.current_stream(device))


def beside(device: torch.device) -> SideStream | None:
    """Return a new stream of a GPU; None: the device is none."""
    return SideStream(device) if is_gpu(device) else None


class SideStream:
    """Work on a GPU beside the stream that PyTorch works in."""

    def __init__(self, device: torch.device) -> None:
        """Make a stream.

        Args:
            device: whose.
        """
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def follow(self) -> None:
        """Let what comes here wait for all that is in the current stream."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def lead(self) -> None:
        """Let what comes in the current stream wait for all that is here."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def entered(self) -> AbstractContextManager[None]:
        """Return a context in which it is the current stream."""
        return torch.cuda.stream(self._stream)

    def keep(self, *tensors: Tensor) -> None:
        """Let the memory of tensors, once they are freed, not be given away before what is here is done."""
        for tensor in tensors:
            tensor.record_stream(self._stream)

    def pinned(self, like: Tensor) -> Tensor:
        """Return room in pinned memory for a tensor of the GPU, which this stream will use from now on."""
        self.keep(like)
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def copy(self, into: Tensor, source: Tensor) -> Callable[[], bool]:
        """Begin a copy; return what asks whether it is done."""
        with self.entered():
            into.copy_(source, non_blocking=True)
        return _mark(self._stream)


def _mark(stream: torch.cuda.Stream) -> Callable[[], bool]:
    event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event.query
