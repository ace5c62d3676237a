"""Module buffers, such as BatchNorm's statistics: equal on all ranks after every window.

Floats become the plain mean over the ranks that moved, summed in float64, in which a float32 constant stays
itself: n*c/n rounds to c. Integers (counters, tables) are taken from the lowest rank that moved. Only
buffers of modules that some rank wrote to in the window travel. BatchNorm's kernel writes its statistics
without a trace, but its counter beside them tells; other modules' small buffers are compared with a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from elche.comm.base import Buffer
from elche.errors import UsageError
from elche.kernels.layout import real_pair

Place = tuple[nn.Module, str]
COPIED_NUMEL = 2**16  # larger buffers are tables and masks rather than statistics


class _Seen(NamedTuple):
    """A buffer when it was last equal on all ranks: the tensor itself, since a freed one's id comes again."""

    tensor: Tensor
    version: int
    copy: Tensor | None

    @classmethod
    def of(cls, tensor: Tensor) -> _Seen:
        copy = tensor.detach().clone() if tensor.numel() <= COPIED_NUMEL else None
        return cls(tensor, tensor._version, copy)

    def traced(self, tensor: Tensor) -> bool:
        return tensor is not self.tensor or tensor._version != self.version

    def differs(self, tensor: Tensor) -> bool:
        return self.copy is not None and not torch.equal(tensor, self.copy)


class Buffers:
    """The buffers of a model, each found anew by its module and name: forward may replace a tensor."""

    def __init__(self, model: nn.Module | None) -> None:
        """Take every buffer of `model` once; None: there are none to keep."""
        places: dict[int, tuple[str, Place]] = {}
        for prefix, module in model.named_modules() if model is not None else ():
            for name, buffer in module.named_buffers(recurse=False):
                places.setdefault(id(buffer), (f"{prefix}.{name}".lstrip("."), (module, name)))
        self.names = [name for name, _ in places.values()]
        self._places = [place for _, place in places.values()]
        self._shapes = [tensor.shape for tensor in self.tensors()]
        self._seen: list[_Seen] = []
        self._sent: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._sums: tuple[Buffer, Buffer] = (np.empty(0), np.empty(0, np.int64))
        self.mark_synced()

    def tensors(self) -> list[Tensor]:
        """Return the buffers as they are now."""
        return [module._buffers[name] for module, name in self._places]  # type: ignore[misc]

    def describe(self) -> dict[str, Any]:
        """Return what must be equal on all ranks: each buffer's shape and dtype, by name."""
        pairs = zip(self.names, self.tensors(), strict=True)
        return {f"buffer {name}": [list(tensor.shape), str(tensor.dtype)] for name, tensor in pairs}

    def mark_synced(self) -> None:
        """Remember the buffers as they are: they are equal on all ranks."""
        self._seen = [_Seen.of(tensor) for tensor in self.tensors()]

    def changed(self) -> list[bool]:
        """Return, by buffer, whether one of its module's was written to or replaced since all were equal.

        Returns:
            One truth per buffer.

        Raises:
            UsageError: a buffer has another shape than at the start.
        """
        tensors = self.tensors()
        for name, tensor, shape in zip(self.names, tensors, self._shapes, strict=True):
            if tensor is None or tensor.shape != shape:
                now = None if tensor is None else tuple(tensor.shape)
                raise UsageError(
                    f"buffer {name} changed its shape from {tuple(shape)} to {now}; "
                    "sync_buffers=False leaves buffers alone"
                )
        seen = list(zip(tensors, self._seen, strict=True))
        modules = [id(module) for module, _ in self._places]
        touched = {
            module for module, (tensor, then) in zip(modules, seen, strict=True) if then.traced(tensor)
        }
        for module, (tensor, then) in zip(modules, seen, strict=True):
            if module not in touched and then.differs(tensor):
                touched.add(module)
        return [module in touched for module in modules]

    def pack(
        self, changed: Sequence[bool], moved: Sequence[bool], rank: int
    ) -> tuple[list[Buffer], list[Buffer]]:
        """Return what to reduce from and into, for the buffers that changed on some rank.

        Args:
            changed: by buffer, whether it travels.
            moved: by rank, whether it did a batch in the window; else its part is zeros. The integers of
                the lowest one count.
            rank: this one.

        Returns:
            Arrays to send and arrays to sum into; empty lists where nothing travels.
        """
        self._sent = [], []
        if not any(changed) or not any(moved):
            return [], []
        travelling = [tensor for tensor, travels in zip(self.tensors(), changed, strict=True) if travels]
        floats = [tensor for tensor in travelling if _is_float(tensor)]
        integers = [tensor for tensor in travelling if not _is_float(tensor)]
        self._sent = floats, integers
        sends = [
            _flat(floats, torch.float64, moved[rank]),
            _flat(integers, torch.int64, moved.index(True) == rank),
        ]
        self._sums = np.empty_like(sends[0]), np.empty_like(sends[1])
        pairs = [pair for pair in zip(sends, self._sums, strict=True) if pair[0].size]
        return [send for send, _ in pairs], [total for _, total in pairs]

    def commit(self, num_moved: int) -> None:
        """Write the mean over `num_moved` ranks into the float buffers, the sum into the integer ones."""
        floats, integers = self._sent
        if not floats and not integers:
            return
        with torch.no_grad():
            _write(floats, torch.from_numpy(self._sums[0] / num_moved))
            _write(integers, torch.from_numpy(self._sums[1]))
        self.mark_synced()


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _flat(tensors: Iterable[Tensor], dtype: torch.dtype, counts: bool) -> Buffer:
    """One host array of all elements, zeros where this rank's do not count."""
    flat = [real_pair(tensor.detach()).to("cpu", dtype).reshape(-1) for tensor in tensors]
    array: Buffer = (
        torch.cat(flat).numpy() if flat else np.empty(0, torch.empty(0, dtype=dtype).numpy().dtype)
    )
    return array if counts else np.zeros_like(array)


def _write(tensors: Sequence[Tensor], flat: Tensor) -> None:
    parts = torch.split(flat, [real_pair(tensor).numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        real = real_pair(tensor)
        real.copy_(part.view(real.shape))
