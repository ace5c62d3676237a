"""A hash of a training state: equal states have equal digests in any process, on any device."""

from __future__ import annotations

import copyreg
import hashlib
import struct
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elche.errors import ConfigError

# In this order: True is an int, too.
_PLAIN: tuple[tuple[type, Callable[[Any], bytes]], ...] = (
    (type(None), lambda _: b""),
    (bool, lambda value: bytes([value])),
    (int, lambda value: value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)),
    (float, lambda value: struct.pack("<d", value)),
    (complex, lambda value: struct.pack("<dd", value.real, value.imag)),
    (str, lambda value: value.encode("utf-8", "surrogatepass")),
    (bytes, bytes),
)


def digest(state: Any) -> bytes:
    """Return the SHA-256 over all tensors' bytes, dtypes and shapes and all plain values, in a fixed order.

    The order in which a dict or set was filled does not count, nor do strides and devices. Other objects are
    taken apart as pickle does it; pickle's own bytes would not do: they tell which equal strings are one
    object.

    Args:
        state: plain values and tensors.

    Returns:
        32 bytes.

    Raises:
        ConfigError: something in it has no value to compare; the text names it.
    """
    walk = _Walk()
    walk.add(state, "state")
    return walk.sha256.digest()


class _Walk:
    """Feeds a value to a hash, each part with its kind and length before it: no two states run together."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()
        self._open: list[int] = []  # ids of the objects that the walk is inside of

    def add(self, value: Any, name: str) -> None:
        """Add a value; `name` is how errors call it."""
        for kind, to_bytes in _PLAIN:
            if isinstance(value, kind):
                self._frame(kind.__name__, to_bytes(value))
                return
        if id(value) in self._open:
            self._frame("loop", str(self._open.index(id(value))).encode())
            return
        self._open.append(id(value))
        self._add_inside(value, name)
        self._open.pop()

    def _add_inside(self, value: Any, name: str) -> None:
        if isinstance(value, Tensor):
            self._add_tensor(value, name)
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            self._frame(f"array {value.dtype.str} {value.shape}", value.tobytes())
        elif isinstance(value, dict):
            self._frame("dict", str(len(value)).encode())
            for key, one in sorted(value.items(), key=lambda item: digest(item[0])):
                self.add(key, name)
                self.add(one, f"{name}[{key!r}]")
        elif isinstance(value, (list, tuple)):
            self._add_all("list" if isinstance(value, list) else "tuple", value, name)
        elif isinstance(value, (set, frozenset)):
            self._add_all("set", sorted(map(digest, value)), name)
        elif isinstance(value, (type, FunctionType, BuiltinFunctionType)):
            self._frame("global", f"{value.__module__}.{value.__qualname__}".encode())
        else:
            self._add_object(value, name)

    def _add_all(self, kind: str, values: Iterable[Any], name: str) -> None:
        values = list(values)
        self._frame(kind, str(len(values)).encode())
        for index, one in enumerate(values):
            self.add(one, f"{name}[{index}]")

    def _add_tensor(self, tensor: Tensor, name: str) -> None:
        try:
            dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
            flat = dense.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
            data = flat.view(torch.uint8).numpy()
        except (RuntimeError, NotImplementedError) as error:  # such as a meta tensor
            raise ConfigError(f"{name} has no bytes to compare: {error}") from error
        self._frame(f"tensor {tensor.dtype} {tuple(tensor.shape)}", data)

    def _add_object(self, value: Any, name: str) -> None:
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            parts: Any = reduce(value) if reduce else value.__reduce_ex__(4)
        except TypeError as error:
            raise ConfigError(f"{name} has no value to compare: {error}") from error
        if isinstance(parts, str):
            self._frame("global", parts.encode())
            return
        make, arguments, state, items, entries = (list(parts) + [None] * 3)[:5]
        self._add_all("object", [make, arguments, state, list(items or ()), list(entries or ())], name)

    def _frame(self, kind: str, data: Any) -> None:
        size = memoryview(data).nbytes
        self.sha256.update(f"{kind} {size}:".encode())
        self.sha256.update(data)
