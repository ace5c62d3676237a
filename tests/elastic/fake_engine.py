"""An engine that trains next to nothing, for what stands on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class FakeEngine:
    """Goes through epochs of one window each, over one model and optimizer."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.writer = model, optimizer, True
        self.extras: dict[str, Any] = {}
        self.reset_callbacks: list[Callable[[], None]] = []
        self.on_stop: Callable[[], None] | None = None
        self.stopping, self.exit_code, self.reason = False, 0, ""
        self.epoch = self.num_windows = self.generation = 0

    def next_epoch(self) -> int | None:
        return None if self.stopping else self.epoch

    def train_epoch(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
        self.optimizer.step()
        self.epoch += 1
        self.num_windows += 1

    def capture(self) -> dict[str, Any]:
        return {
            "format": 1,
            "model": {name: tensor.detach() for name, tensor in self.model.state_dict().items()},
            "optimizer": self.optimizer.state_dict(),
            "counters": {"epoch": self.epoch, "num_windows": self.num_windows},
            "extras": {name: extra.state_dict() for name, extra in self.extras.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.num_windows = state["counters"]["epoch"], state["counters"]["num_windows"]
        for name, extra in self.extras.items():
            extra.load_state_dict(state["extras"][name])

    def request_stop(self, reason: str, exit_code: int) -> None:
        self.stopping, self.reason, self.exit_code = True, reason, exit_code

    def is_writer(self) -> bool:
        return self.writer


class Loader:
    """Stands for an elche.DataLoader."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine


def job(momentum: float = 0.9) -> tuple[nn.Module, torch.optim.Optimizer, FakeEngine]:
    model = nn.Linear(2, 1)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=momentum)
    optimizer._engine = FakeEngine(model, optimizer)  # type: ignore[attr-defined]
    return model, optimizer, optimizer._engine
