"""Run under mpirun: cases in which one rank is odd; each rank writes the error it caught in each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import training_rig as rig
from torch import nn

import elche


def start(odd, *, extra=(), hidden=4, dtype=torch.float32, kind=torch.optim.SGD, batch_size=1, **cadence):
    """Wrap; the odd rank with the given changes, the others without."""
    if not odd:
        return start(True)
    model = nn.Sequential(nn.Linear(3, hidden), nn.Linear(hidden, 1), *extra).to(dtype)
    loader = elche.DataLoader(rig.samples(30), batch_size)
    optimizer = kind(model.parameters(), lr=0.1)
    cadence = elche.Cadence(**cadence)
    named = model.named_parameters()
    return model, elche.DistributedOptimizer(optimizer, named, loader=loader, cadence=cadence), loader


def train(model, optimizer, loader, steps=1):
    for x, y in loader:
        optimizer.zero_grad()
        rig.squared(model, (x, y)).backward()
        for _ in range(steps):
            optimizer.step()


def poisoned(rank):
    """On the last rank a gradient is nan."""
    model, optimizer, loader = start(True, nonfinite="raise")
    if rank == 2:
        model[0].weight.register_hook(lambda grad: grad * float("nan"))
    train(model, optimizer, loader)


def weighed(rank):
    train(*start(True, weight=lambda batch: -1.0 if rank == 0 else 1.0))


def broken_off(rank):
    model, optimizer, loader = start(True)
    if rank == 1:
        next(iter(loader))
    train(model, optimizer, loader)


def reshaped(rank):
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).eval()
    loader = elche.DataLoader(rig.samples(30), 1)
    optimizer = elche.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), loader=loader
    )
    if rank == 1:
        model[0].register_buffer("running_mean", torch.zeros(1))
    train(model, optimizer, loader)


def of_another_epoch(rank):
    model, optimizer, loader = start(True)
    loader.set_epoch(rank)
    train(model, optimizer, loader)


CASES = {
    "layer": lambda rank: start(rank == 1, extra=[nn.Linear(1, 1)]),
    "shape": lambda rank: start(rank == 2, hidden=5),
    "dtype": lambda rank: start(rank == 0, dtype=torch.float64),
    "optimizer": lambda rank: start(rank == 1, kind=torch.optim.Adam),
    "batch size": lambda rank: start(rank == 2, batch_size=3),
    "cadence": lambda rank: start(rank == 1, anchor=3),
    "refused": lambda rank: start(rank == 1, kind=torch.optim.LBFGS),
    "step twice": lambda rank: train(*start(True), steps=1 + (rank == 2)),
    "no step": lambda rank: train(*start(True), steps=int(rank != 0)),
    "nonfinite": poisoned,
    "weight": weighed,
    "break": broken_off,
    "buffer": reshaped,
    "epoch": of_another_epoch,
}


def main() -> None:
    threads = torch.get_num_threads()
    elche.init()
    caught = {"threads": [threads, torch.get_num_threads()]}
    for name, case in CASES.items():
        try:
            case(elche.rank())
        except Exception as error:
            caught[name] = [[kind.__name__ for kind in type(error).__mro__], str(error)]
    Path(sys.argv[1], f"{elche.rank()}.json").write_text(json.dumps(caught))


if __name__ == "__main__":
    main()
