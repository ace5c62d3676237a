"""Ranks whose tensors on the CPU pass for tensors on GPUs, with a fake CuPy each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from fake_cupy import Fabric, FakeCupy

from elche.comm import nccl_ready
from elche.comm.nccl import NcclComm
from elche.training import reducers, streams
from elche.training.streams import Gpu
from elche.world import current

STREAM, SIDE = 0x5000, 0x5100  # PyTorch's current one, and one beside it
_current = threading.local()  # has the handle of the stream that was entered
POLLS = 3  # a copy is done when it has been asked for so often: not at once


class FakeGpus:
    """What the ranks of a test have.

    Attributes:
        cupys: each process's package, made when it is first asked for.
        sides: each process's side streams.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        gpus: Sequence[str | None] | None = None,
        faults: Mapping[int, dict[Any, Any]] | None = None,
        load: Callable[[int], Any] | None = None,
        cuda: str | None = "12.8",
        **options: Any,
    ) -> None:
        """Let processes have GPUs.

        Args:
            monkeypatch: of the test.
            gpus: by process, what its GPU is known by, None: it has none; None: each has its own.
            faults: by process, those of its CuPy.
            load: imports CuPy for a process; None: it is there.
            cuda: what PyTorch was built for.
            **options: of each CuPy.
        """
        self.cupys: dict[int, FakeCupy] = {}
        self.sides: dict[int, list[FakeSide]] = {}
        self._fabric, self._faults, self._options = Fabric(), faults or {}, options
        self._made: list[tuple[int, NcclComm]] = []
        self._load, self._lock = load or self.cupy, threading.Lock()

        def identity() -> str | None:
            return f"GPU-{process()}" if gpus is None else gpus[process()]

        monkeypatch.setattr(streams, "is_gpu", lambda device: identity() is not None)
        monkeypatch.setattr(streams, "gpu_of", lambda device: Gpu(process(), str(identity()), cuda))
        monkeypatch.setattr(streams, "current_handle", lambda device: getattr(_current, "handle", STREAM))
        monkeypatch.setattr(streams, "mark", lambda device: self.cupy(process()).mark())
        monkeypatch.setattr(streams, "beside", lambda device: self._side() if identity() else None)
        monkeypatch.setattr(nccl_ready, "import_cupy", lambda: self._load(process()))
        monkeypatch.setattr(reducers, "NcclComm", self._communicator)

    def cupy(self, number: int) -> FakeCupy:
        """Return a process's package."""
        with self._lock:
            if number not in self.cupys:
                self.cupys[number] = FakeCupy(self._fabric, self._faults.get(number), **self._options)
            return self.cupys[number]

    def calls(self, number: int, *names: str) -> list[str]:
        """Return the names of a process's calls, but for questions after errors; of these only, if any."""
        if number not in self.cupys:
            return []
        told = [name for name in self.cupys[number].names() if name != "check_async_error"]
        return [name for name in told if not names or name in names]

    def close_left_open(self) -> set[int]:
        """Return the processes that have left a communicator open, as the killed do; close them."""
        left_open = {number for number, comm in self._made if comm._aborting is None}
        for _, comm in self._made:
            comm.close()
        return left_open

    def _communicator(self, *args: Any) -> NcclComm:
        self._made.append((process(), NcclComm(*args)))
        return self._made[-1][1]

    def _side(self) -> FakeSide:
        side = FakeSide()
        self.sides.setdefault(process(), []).append(side)
        return side


class FakeSide:
    """A stream beside the current one; what is copied arrives when it has been asked for some times.

    Attributes:
        calls: what it was told, in order.
    """

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self._queue: list[tuple[torch.Tensor, torch.Tensor]] = []

    @contextmanager
    def entered(self) -> Iterator[None]:
        _current.handle = SIDE
        try:
            yield
        finally:
            _current.handle = STREAM

    def keep(self, *tensors: torch.Tensor) -> None:
        pass

    def follow(self) -> None:
        self.calls.append("follow")

    def lead(self) -> None:
        self.calls.append("lead")
        self._finish(len(self._queue))

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        return torch.full_like(like, torch.nan)

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> Callable[[], bool]:
        self.calls.append(("copy", source.data_ptr(), into.data_ptr()))
        self._queue.append((into, source))
        place, asked = len(self._queue), iter(range(POLLS))

        def is_done() -> bool:
            if next(asked, None) is not None:
                return False
            self._finish(place)
            return True

        return is_done

    def _finish(self, place: int) -> None:
        """Do the copies up to this one, in their order, each once."""
        for index, pair in enumerate(self._queue[:place]):
            if pair is not None:
                pair[0].copy_(pair[1])
                self._queue[index] = None  # type: ignore[call-overload]


def process() -> int:
    """Return the number of the process that asks."""
    world = current()
    return world.comm.rank if world.group is None else world.group.process
