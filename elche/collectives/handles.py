"""A handle: what a caller holds of an operation under way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from elche.collectives.requests import Request


class Handle:
    """An operation under way, for `poll` and `synchronize`.

    Attributes:
        request: what the other ranks are told.
        inputs: this rank's tensors, contiguous and on the CPU.
        sizes: once it has ended: how many rows of its first tensor each rank has sent here.
        starts: of a gather: at which row of each result this rank's own begin.
        hurry: tells the thread that somebody waits.
        ended: is notified when operations have ended; one for all of a channel, for a thousand handles with a
            lock of each own keep Python's collector busy.
        last: once all have joined, the rank that came last.
    """

    request: Request
    inputs: list[Tensor]
    sizes: list[int]
    starts: list[int]
    hurry: Callable[[], None]
    ended: threading.Condition
    last: int

    def __init__(
        self,
        request: Request,
        tensors: Sequence[Tensor] = (),
        outputs: Sequence[Tensor] | None = None,
        finish: Callable[[Handle], Any] | None = None,
    ) -> None:
        """Begin.

        Args:
            request: what the other ranks are told.
            tensors: this rank's, of any strides and device; a GPU's are copied to the host here and now.
            outputs: which tensors take the results; None: new ones.
            finish: makes of this handle what `synchronize` returns; None: the result, or None.
        """
        self.request = request
        self.inputs = [_on_host(tensor) for tensor in tensors]
        self._devices = [tensor.device for tensor in tensors]
        self._outputs, self._finish = outputs, finish
        self._results: list[Tensor] = []
        self.sizes, self.starts, self.last = [], [], -1
        self._done = False
        self._error: BaseException | None = None
        self._is_written = False

    def take(self, results: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Keep the results, and return what is to be copied before the operation has ended: to, and from."""
        self._results, self.inputs = list(results), []
        self._is_written = all(device.type == "cpu" for device in self._devices)
        if not self._is_written or self._outputs is None:
            return []
        self._results = list(self._outputs)
        return [
            (output.detach() if output.requires_grad else output, result)
            for output, result in zip(self._outputs, results, strict=True)
            if output.data_ptr() != result.data_ptr()
        ]

    def succeed(self) -> None:
        """Let the operation have ended well; who waits is still to be notified."""
        self._done = True

    def fail(self, error: BaseException) -> None:
        """Let the operation have ended with an error; who waits is still to be notified."""
        self._error, self.inputs = error, []
        self._done = True

    def is_done(self) -> bool:
        """Return whether it has ended, well or not; then its outputs hold the results."""
        if not self._done:
            self.hurry()
            return False
        if self._error is None:
            self._write()
        return True

    def wait(self) -> Any:
        """Return what it comes to, once it has ended; its own thread keeps the deadline.

        Returns:
            The result, or what `finish` makes of it.

        Raises:
            ConfigError: its result cannot be written to the tensor given.
            HorovodInternalError: it cannot end, or was refused.
        """
        if not self._done:
            self.hurry()
            with self.ended:
                self.ended.wait_for(lambda: self._done)
        if self._error is not None:
            raise self._error
        self._write()
        if self._finish is not None:
            return self._finish(self)
        return None if not self._results else self._results[0]

    def __call__(self) -> Any:
        """Return what `wait` does; Horovod's handles of sparse tensors are called."""
        return self.wait()

    @property
    def makes_new(self) -> bool:
        """Whether the results are new tensors."""
        return self._outputs is None

    @property
    def results(self) -> list[Tensor]:
        """The outputs."""
        return self._results

    def _write(self) -> None:
        """Bring the results to the GPU they belong on, in the caller's thread and stream."""
        if self._is_written:
            return
        self._is_written = True
        if self._outputs is None:
            self._results = [
                result.to(device) for result, device in zip(self._results, self._devices, strict=True)
            ]
            return
        with torch.inference_mode():
            for output, result in zip(self._outputs, self._results, strict=True):
                output.copy_(result)
        self._results = list(self._outputs)


def _on_host(tensor: Tensor) -> Tensor:
    """Return a tensor's values, contiguous and on the CPU; the tensor itself where it is so."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    return (tensor if tensor.device.type == "cpu" else tensor.cpu()).contiguous()
