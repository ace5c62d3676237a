"""Does it learn as well, and sooner? scikit-learn's digits over five seeds, on an emulated 1:1:2:4 rig.

python benchmarks/bench_convergence.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import harness  # puts examples/ on the path

# isort: split
import digits
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from harness import Spread, goal
from rig import BATCH_SECONDS, BATCH_SIZE, Rig
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import elche

SPEEDS = [1.0, 1.0, 2.0, 4.0]
LEARNING_RATE, MOMENTUM = 0.05, 0.9
TARGET = 0.95
GOAL_OF_RATIO = 0.9


@dataclass
class Course:
    """What one training run came by: rank 0's parameters after each update, and when."""

    seconds: list[float] = field(default_factory=list)
    parameters: list[list[Tensor]] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def add(self, model: nn.Module) -> None:
        """Keep the parameters of now; testing them waits until the clock no longer runs."""
        self.seconds.append(time.perf_counter() - self.started)
        self.parameters.append([parameter.detach().clone() for parameter in model.parameters()])

    def judge(self) -> dict[str, float]:
        """Return the final accuracy, and when and after how many updates the target was reached."""
        accuracies = [self._accuracy(parameters) for parameters in self.parameters]
        first = next((i for i, accuracy in enumerate(accuracies) if accuracy >= TARGET), len(accuracies) - 1)
        return {"accuracy": accuracies[-1], "seconds": self.seconds[first], "updates": first + 1}

    def _accuracy(self, parameters: list[Tensor]) -> float:
        net = digits.Net()
        with torch.no_grad():
            for mine, kept in zip(net.parameters(), parameters, strict=True):
                mine.copy_(kept)
        return digits.accuracy(net, digits.load()[1])


def work(args: argparse.Namespace) -> None:
    """Train every way on every seed; every rank runs this."""
    rig = Rig(list(SPEEDS), args.anchor, digits.Net)
    repeats = []
    for seed in range(args.seeds):
        methods: dict[str, Callable[[int], Any]] = {
            "rates": lambda _: rig.rates(seconds=1.0),
            "alone": lambda seed: train_alone(rig, seed, args.epochs).judge() if rig.rank == 0 else None,
            "ddp": lambda seed: train_ddp(rig, seed, args.epochs).judge(),
            "elche": lambda seed: train_elche(rig, seed, args.epochs).judge(),
        }
        repeats.append({name: method(seed) for name, method in methods.items()})
    if rig.rank == 0:
        harness.hand_back({"samples_per_update": rig.samples_per_update, "seeds": repeats})
    rig.leave()


def train_alone(rig: Rig, seed: int, num_epochs: int) -> Course:
    """Train in this process alone, without emulation, with the rig's samples per update as batch size."""
    torch.manual_seed(seed)
    model = digits.Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    course = Course()
    for _ in range(num_epochs):
        for x, y in DataLoader(digits.load()[0], batch_size=rig.samples_per_update, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            course.add(model)
    return course


def train_ddp(rig: Rig, seed: int, num_epochs: int) -> Course:
    """Train with torch DDP in lockstep, equal batches, the rig's samples per update."""
    train_set = digits.load()[0]
    model = DistributedDataParallel(rig.model(seed))
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    sampler = DistributedSampler(train_set, seed=seed)
    loader = DataLoader(train_set, batch_size=rig.equal_batches()[0], sampler=sampler)
    dist.barrier()
    course = Course()
    for epoch in range(num_epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            course.add(model)
    return course


def train_elche(rig: Rig, seed: int, num_epochs: int) -> Course:
    """Train with elche, told nothing of the speeds."""
    model = rig.model(seed)
    loader = elche.DataLoader(digits.load()[0], batch_size=BATCH_SIZE, shuffle=True, seed=seed)
    optimizer = elche.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM),
        named_parameters=model.named_parameters(),
        loader=loader,
        cadence=elche.Cadence(anchor=rig.anchor),
    )
    dist.barrier()
    course = Course()
    for _ in range(num_epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if optimizer.updated:
                course.add(model)
    return course


def render(result: dict[str, Any], num_epochs: int) -> str:
    """Return the report's text."""
    seeds = result["seeds"]
    names = {"alone": "one process", "ddp": "torch DDP", "elche": "elche"}
    table = harness.markdown_table(
        ["", "final accuracy, %", f"updates to {TARGET:.0%}", f"seconds to {TARGET:.0%}"],
        [
            [
                title,
                Spread.of([seed[name]["accuracy"] for seed in seeds]).format(".2f", 100),
                Spread.of([seed[name]["updates"] for seed in seeds]).format(".0f"),
                "" if name == "alone" else Spread.of([seed[name]["seconds"] for seed in seeds]).format(".2f"),
            ]
            for name, title in names.items()
        ],
    )
    setting = harness.paragraph(f"""
        digits, {num_epochs} epochs, {len(seeds)} seeds, SGD with lr {LEARNING_RATE} and momentum
        {MOMENTUM}, {result["samples_per_update"]} samples per update. Emulated devices, 1:1:2:4; a batch of
        {BATCH_SIZE} takes {BATCH_SECONDS * 1000:g} ms at speed 1. Medians (20 % to 80 %) over seeds; seconds
        do not include testing.""")
    return f"{setting}\n\n{table}\n\n{accuracy_line(seeds)}\n\n{time_line(seeds)}"


def accuracy_line(seeds: list[dict[str, Any]]) -> str:
    """Return how elche's final accuracy compares with one process's."""
    gaps = [100 * (seed["elche"]["accuracy"] - seed["alone"]["accuracy"]) for seed in seeds]
    gap, noise = statistics.mean(gaps), 2 * statistics.stdev(gaps) / len(gaps) ** 0.5
    return harness.paragraph(f"""
        Final accuracy, elche less one process with the same global batch, mean of pairs: {gap:+.2f} points;
        two standard errors are {noise:.2f}. Goal, not below by more than noise: {goal(gap >= -noise)}.""")


def time_line(seeds: list[dict[str, Any]]) -> str:
    """Return how much sooner than DDP elche reaches the target, over what the bound allows."""
    allowed = [sum(seed["rates"]) / (len(SPEEDS) * min(seed["rates"])) for seed in seeds]
    faster = [seed["ddp"]["seconds"] / seed["elche"]["seconds"] for seed in seeds]
    share = statistics.median(f / a for f, a in zip(faster, allowed, strict=True))
    return harness.paragraph(f"""
        Sooner at {TARGET:.0%} than DDP, medians of pairs: {statistics.median(faster):.2f} times; the bound
        allows {statistics.median(allowed):.2f}; share {share:.2f}. Goal, {GOAL_OF_RATIO} or more:
        {goal(share >= GOAL_OF_RATIO)}.""")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--anchor", type=int, default=2)
    args = parser.parse_args()
    if harness.is_worker():
        return work(args)
    header = harness.conditions()
    settings = ("--seeds", str(args.seeds), "--epochs", str(args.epochs), "--anchor", str(args.anchor))
    result = harness.launch(__file__, len(SPEEDS), *settings)
    return harness.report("convergence", header, render(result, args.epochs), result)


if __name__ == "__main__":
    main()
