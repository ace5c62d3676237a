"""What a TorchState needs of the engine that trains, and the engine of what it carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

FORMAT = 1  # of what a Trainer captures


class Carried(Protocol):
    """Something whose state travels to newcomers and into checkpoints."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Take over a state."""
        ...


class Trainer(Protocol):
    """What a TorchState needs of the engine behind a `DistributedOptimizer`.

    Attributes:
        extras: what travels beside model, optimizer and the engine's own, by name.
        stopping: whether all ranks have agreed to stop: there are no more batches.
        exit_code: with which a stopped job ends.
        generation: number of the view.
        num_windows: committed windows so far.
        reset_callbacks: called, in order, after ranks were lost or came.
        on_stop: called when all ranks stop after the same window.
    """

    extras: dict[str, Carried]
    stopping: bool
    exit_code: int
    generation: int
    num_windows: int
    reset_callbacks: list[Callable[[], None]]
    on_stop: Callable[[], None] | None

    def next_epoch(self) -> int | None:
        """Return the epoch to train, after entering where this process is outside; None: there is none."""
        ...

    def capture(self) -> dict[str, Any]:
        """Return everything as of the last committed window, extras too; may share memory with it."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a captured state, on any number of ranks; before training or between epochs."""
        ...

    def request_stop(self, reason: str, exit_code: int) -> None:
        """Ask all ranks to stop after the same window."""
        ...

    def is_writer(self) -> bool:
        """Return whether this rank is the one that writes files."""
        ...
