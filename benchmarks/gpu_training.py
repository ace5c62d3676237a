"""Trainings on the GPU, for gpu_check.sh: every rank ends with the same bits, and the loss has fallen.

One with gradients as they are, one with float16 on the wire.

mpirun -np 2 python benchmarks/gpu_training.py                # both ranks on one GPU, too
mpirun -np 2 python benchmarks/gpu_training.py --device cpu   # to try this file where there is none
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import elche
from elche.training.wire import WireFormat

NUM_SAMPLES, NUM_FEATURES, NUM_CLASSES = 2048, 64, 10
WAYS = elche.Compression.none, elche.Compression.fp16.with_error_feedback()


def learnable_data() -> TensorDataset:
    """Return samples whose class a linear map tells."""
    draw = torch.Generator().manual_seed(5)
    samples = torch.randn(NUM_SAMPLES, NUM_FEATURES, generator=draw)
    teacher = torch.randn(NUM_FEATURES, NUM_CLASSES, generator=draw)
    return TensorDataset(samples, (samples @ teacher).argmax(1))


def train(device: torch.device, num_epochs: int, way: WireFormat) -> tuple[nn.Module, list[float]]:
    """Train; return the model and the mean loss of each epoch on this rank."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(NUM_FEATURES, 257), nn.ReLU(), nn.Linear(257, NUM_CLASSES)).to(device)
    loader = elche.DataLoader(learnable_data(), batch_size=32, shuffle=True, seed=0)
    optimizer = elche.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        named_parameters=model.named_parameters(),
        loader=loader,
        cadence=elche.Cadence(anchor=2),
        compression=way,
    )
    losses = []
    for _ in range(num_epochs):
        batches = []
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            batches.append(loss.detach())
        losses.append(torch.stack(batches).mean().item())
    return model, losses


def check(device: torch.device, num_epochs: int, way: WireFormat) -> bool:
    """Train; return whether the ranks are equal and this one has learned."""
    model, losses = train(device, num_epochs, way)
    parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).cpu()
    from mpi4py import MPI

    everybody = MPI.COMM_WORLD.allgather(parameters.numpy().tobytes())
    equal = len(set(everybody)) == 1
    if elche.rank() == 0:
        print(
            f"{len(everybody)} ranks on {device}, compression {way}; equal parameters: {equal}; "
            f"losses: {losses}"
        )
    return equal and losses[-1] < losses[0] / 2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    elche.init()
    outcomes = [check(torch.device(args.device), args.epochs, way) for way in WAYS]
    elche.shutdown()
    sys.exit(0 if all(outcomes) else 1)


if __name__ == "__main__":
    main()
