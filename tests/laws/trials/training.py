"""Train a scenario on this rank, as a user would, and note what happened window by window."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import elche
from elche.policy.schedule import Schedule
from trials.models import Samples, loss_of, make_model
from trials.scenarios import Scenario


@dataclass
class Snapshot:
    """The replicated state as it was at one moment; the mean gradients after an update only."""

    model: dict[str, Any]
    grads: dict[str, Any]
    optimizer: dict[str, Any]


@dataclass
class WindowRecord:
    """A committed window as one rank saw it.

    Attributes:
        epoch, ranges: the plan's.
        updated: whether the commit said that it was an update.
        num_updates: after it.
        digest: hash of parameters, buffers, optimizer and policy state, learning rates and counters.
        after: the state itself; rank 0 only.
    """

    epoch: int
    ranges: tuple[tuple[tuple[int, int], ...], ...]
    updated: bool
    num_updates: int
    digest: str
    after: Snapshot | None


@dataclass
class Record:
    """What one rank did.

    Attributes:
        before: its state at the start.
        windows: in the order of their commits.
        seen: (epoch, sample ids) of each batch that the loop got.
        updates: (epoch, optimizer.num_updates) after each `step()` that said it was an update.
    """

    before: Snapshot
    windows: list[WindowRecord] = field(default_factory=list)
    seen: list[tuple[int, list[int]]] = field(default_factory=list)
    updates: list[tuple[int, int]] = field(default_factory=list)


class FixedSchedule(Schedule):
    """Counts that a scenario sets, window by window."""

    table: tuple[tuple[int, ...], ...] = ()
    observed = 0

    def counts(self) -> list[int]:
        counts = self.table[self.observed % len(self.table)][: len(self.living)]
        return list(counts) if any(counts) else [1] * len(counts)

    def observe(self, *args: Any) -> Any:
        self.observed += 1
        return super().observe(*args)


def schedule_of(scenario: Scenario) -> Any:
    """Let the engine plan with the scenario's own counts, where it has some."""
    kind = type("Schedule", (FixedSchedule if scenario.counts else Schedule,), {"table": scenario.counts})
    return patch("elche.training.optimizer.Schedule", kind)


def make_loader(scenario: Scenario, world_size: int) -> elche.DataLoader:
    samples = scenario.samples or world_size
    return elche.DataLoader(
        Samples(scenario.model, samples, scenario.dtype, scenario.poisoned),
        scenario.batch_size,
        shuffle=scenario.shuffle,
        seed=7,
        drop_last=scenario.drop_last,
        num_workers=scenario.num_workers,
    )


def train(scenario: Scenario) -> Record:
    """Train; each rank starts from weights of its own, and rank 0's must win."""
    model = make_model(scenario.model, scenario.dtype, seed=elche.rank())
    optimizer = scenario.make_optimizer(model)
    loader = make_loader(scenario, elche.size())
    if scenario.warm and elche.rank() == 0:
        loss_of(model, loader.dataset.batch([0, 1, 2])).backward()
        optimizer.step()
    record = Record(snapshot(model, optimizer))
    optimizer = elche.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        loader=loader,
        cadence=scenario.make_cadence(),
    )
    watch_commits(record, model, optimizer)
    loop(scenario, record, model, optimizer, loader)
    return record


def loop(scenario: Scenario, record: Record, model: Any, optimizer: Any, loader: Any) -> None:
    """A user's training loop."""
    scheduler = make_scheduler(scenario, optimizer)
    for epoch in range(scenario.epochs):
        for batch in loader:
            record.seen.append((epoch, batch[2].tolist()))
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.report_loss(loss)
            optimizer.step()
            if optimizer.updated:
                record.updates.append((epoch, optimizer.num_updates))
                if scenario.schedule == "update":
                    scheduler.step()
                if (elche.rank(), optimizer.num_updates) == (1, 5):
                    perturb(scenario.perturbed, model, optimizer)
        if scenario.schedule == "epoch":
            scheduler.step()


def make_scheduler(scenario: Scenario, optimizer: Any) -> Any:
    rule = (lambda n: 1 / (1 + n)) if scenario.schedule == "update" else (lambda n: 0.5**n)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, rule) if scenario.schedule else None


def perturb(what: str | None, model: torch.nn.Module, optimizer: Any) -> None:
    """Change a number behind elche's back."""
    first = next(model.parameters())
    victims = {"parameter": first, "momentum": optimizer.state[first].get("momentum_buffer")}
    if what is not None:
        with torch.no_grad():
            victims[what].view(-1)[0].add_(1e-3)


def watch_commits(record: Record, model: Any, optimizer: Any) -> None:
    """Take a snapshot after every commit, also those of windows in which this rank had no batch."""
    engine = optimizer._engine
    commit = engine._commit

    def watched() -> None:
        plan, before = engine.plan, engine.num_updates
        commit()
        updated = engine.num_updates > before
        now = snapshot(model, optimizer, updated)
        hashed = digest(now, engine.job.schedule.state_dict())
        kept = now if elche.rank() == 0 else None
        seen = WindowRecord(plan.epoch, plan.ranges, updated, optimizer.num_updates, hashed, kept)
        record.windows.append(seen)

    engine._commit = watched


def snapshot(model: Any, optimizer: Any, updated: bool = False) -> Snapshot:
    grads = {name: p.grad for name, p in model.named_parameters()} if updated else {}
    return copy.deepcopy(Snapshot(model.state_dict(), grads, optimizer.state_dict()))


def digest(*values: Any) -> str:
    """Hash every bit of nested plain values and tensors."""
    found = hashlib.sha256()

    def feed(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.update(f"{value.dtype}{tuple(value.shape)}".encode())
            found.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                found.update(repr(key).encode())
                feed(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                feed(item)
        elif isinstance(value, Snapshot):
            feed(vars(value))
        else:
            found.update(repr(value).encode())

    feed(values)
    return found.hexdigest()


def read_log(folder: Path, scenario: Scenario, world_size: int) -> list[list[dict[str, Any]]]:
    """The event logs that a training left, one or one per rank."""
    writers = range(world_size) if "{rank}" in scenario.log else [0]
    paths = [folder / scenario.log.replace("{rank}", str(rank)) for rank in writers]
    assert sorted(folder.iterdir()) == sorted(paths)
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]


def logging_to(folder: Path, scenario: Scenario) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    return patch.dict(os.environ, {"ELCHE_LOG": str(folder / scenario.log)})
