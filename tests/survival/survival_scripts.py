"""What the processes of these tests train, and how: scripts as users write them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from survival_rig import Process, Returned
from torch import Tensor, nn

import elche
from elche.policy.ledger import SlotReport
from elche.training.timing import Stopwatch
from elche.world import current

BATCH_SECONDS = 0.003


@dataclass
class Report:
    """How a script ended: what it had trained, if it was a member to the end."""

    process: int
    member: bool = False
    early: bool = False
    state: Any = None
    model: dict[str, Tensor] = field(default_factory=dict)
    updates: int = 0


class Seen(nn.Module):
    """Passes its input on, and remembers its mean in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x


class Data(torch.utils.data.Dataset):
    """Seeded samples (x, y); says when one is asked for."""

    def __init__(self, n: int, at: Callable[[str], None] = lambda point: None) -> None:
        generator = torch.Generator().manual_seed(n)
        self.x = torch.randn(n, 3, dtype=torch.float64, generator=generator)
        self.y = self.x.sum(1, keepdim=True).sin()
        self._at = at

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        self._at("data")
        return self.x[i], self.y[i]


def network(width: int = 4) -> nn.Sequential:
    """Return the same small network at every call."""
    model = nn.Sequential(Seen(), nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1)).double()
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=generator)
    return model


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def wrapped(
    process: Process, model: nn.Module, optimizer: Any, *, samples: int = 48, batch_size: int = 2, **more: Any
) -> Any:
    """Return a loader, after wrapping the optimizer."""
    loader = elche.DataLoader(Data(samples, process.at), batch_size, shuffle=True, seed=3)
    process.watch(elche.DistributedOptimizer(optimizer, model.named_parameters(), loader=loader, **more))
    return loader


def go_through(
    process: Process,
    model: nn.Module,
    loader: Any,
    before_batch: Callable[[Process], None] = lambda process: None,
) -> None:
    """Go through an epoch as users do."""
    for x, y in loader:
        before_batch(process)
        process.at("batch")
        time.sleep(BATCH_SECONDS)
        process.optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        process.optimizer.report_loss(loss)
        process.optimizer.step()


def training(
    epochs: int = 3,
    *,
    stateful: bool = True,
    samples: int = 48,
    make: Callable[[], nn.Sequential] = network,
    before_batch: Callable[[Process], None] = lambda process: None,
    after_epoch: Callable[[Process], None] = lambda process: None,
    **more: Any,
) -> Callable[[Process], Report]:
    """Return the script of a training; with a TorchState, or as scripts without one count epochs."""

    def script(process: Process) -> Report:
        model = make()
        optimizer = sgd(model)
        loader = wrapped(process, model, optimizer, samples=samples, **more)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)
        state = elche.elastic.TorchState(model, optimizer, loader=loader, scheduler=scheduler)
        try:
            for _ in state.epochs(epochs) if stateful else range(epochs):
                go_through(process, model, loader, before_batch)
                scheduler.step()
                after_epoch(process)
                process.at("epoch")
        except Returned:
            return Report(process.number, early=True)
        return report(process, model, scheduler)

    return script


def report(process: Process, model: nn.Module, *more: Any) -> Report:
    """Return what a process has come to, with the states of `more`."""
    optimizer = process.optimizer
    states = [model, optimizer, process.engine.job.schedule, *more]
    everything = [plain(one.state_dict()) for one in states]
    parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    return Report(
        process.number,
        member=process.world.inside,
        state=[*everything, optimizer.num_updates],
        model=parameters,
        updates=optimizer.num_updates,
    )


def plain(value: Any) -> Any:
    """Return nested values that can be compared; a tensor as its bytes."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return list(map(plain, value)) if isinstance(value, (list, tuple)) else value


def speeds(monkeypatch: pytest.MonkeyPatch, *ms: float) -> None:
    """Let process p be measured at ms[p] a batch, however long it took."""
    close = Stopwatch.close

    def measured(stopwatch: Stopwatch) -> SlotReport:
        report, each = close(stopwatch), ms[current().group.process]
        steps = report.steps
        return report._replace(
            wall_ms=each * steps, first_batch_ms=each * min(steps, 1), delivered_ms=each * max(steps - 1, 0)
        )

    monkeypatch.setattr(Stopwatch, "close", measured)
