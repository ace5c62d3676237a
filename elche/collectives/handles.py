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
        last: once all have joined, the rank that came last.
    """

    request: Request
    inputs: list[Tensor]
    sizes: list[int]
    starts: list[int]
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
        self.inputs = [tensor.detach().cpu().contiguous() for tensor in tensors]
        self._devices = [tensor.device for tensor in tensors]
        self._outputs, self._finish = outputs, finish
        self._results: list[Tensor] = []
        self.sizes, self.starts, self.last = [], [], -1
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._is_written = False

    def succeed(self, results: Sequence[Tensor] = ()) -> None:
        """Let the operation have ended with these results; CPU tensors take them here."""
        self._results, self.inputs = list(results), []
        if all(device.type == "cpu" for device in self._devices):
            self._write()
        self._done.set()

    def fail(self, error: BaseException) -> None:
        """Let the operation have ended with an error."""
        self._error, self.inputs = error, []
        self._done.set()

    def is_done(self) -> bool:
        """Return whether it has ended, well or not; then its outputs hold the results."""
        if self._done.is_set() and self._error is None:
            self._write()
        return self._done.is_set()

    def wait(self) -> Any:
        """Return what it comes to, once it has ended; its own thread keeps the deadline.

        Returns:
            The result, or what `finish` makes of it.

        Raises:
            HorovodInternalError: it cannot end, or was refused.
        """
        self._done.wait()
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
        """Bring the results to where they belong, in the caller's thread and stream where that is a GPU."""
        if self._is_written:
            return
        self._is_written = True
        with torch.no_grad():
            if self._outputs is None:
                self._results = [
                    result.to(device) for result, device in zip(self._results, self._devices, strict=True)
                ]
                return
            for output, result in zip(self._outputs, self._results, strict=True):
                if output.data_ptr() != result.data_ptr() or output.device != result.device:
                    output.detach().copy_(result)
        self._results = list(self._outputs)
