"""What two bytes an element cost: scikit-learn's digits with compressed gradients, and the time of a sum.

python benchmarks/bench_compression.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import harness  # puts examples/ on the path

# isort: split
import digits
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from harness import Spread

import elche
from elche.training.transport import HostTransport
from elche.training.wire import WireFormat, WireSum
from elche.world import current

NUM_RANKS, TIMED_RANKS = 4, (2, 4)
MEGABYTES = 25  # of float32
WAYS: dict[str, WireFormat] = {
    "float32": elche.Compression.none,
    "bf16": elche.Compression.bf16,
    "bf16, fed back": elche.Compression.bf16.with_error_feedback(),
    "fp16": elche.Compression.fp16,
    "fp16, fed back": elche.Compression.fp16.with_error_feedback(),
}


def work(args: argparse.Namespace) -> None:
    """Train every way on every seed, or time the sums; every rank runs this."""
    torch.set_num_threads(1)
    elche.init()
    if args.timed:
        sums = {name: timed_sum(way.dtype) for name, way in WAYS.items() if not way.error_feedback}
        result: Any = harness.alternate(sums, args.repeats)
    else:
        result = [compare(seed, args.epochs) for seed in range(args.seeds)]
    if elche.rank() == 0:
        harness.hand_back(result)
    elche.shutdown()


def compare(seed: int, num_epochs: int) -> dict[str, dict[str, float]]:
    """Return, by way, the accuracy and how far its parameters ended from float32's, over their norm."""
    trained = {name: train(way, seed, num_epochs) for name, way in WAYS.items()}
    exact = parameters(trained["float32"])
    test_set = digits.load()[1]
    return {
        name: {
            "accuracy": digits.accuracy(model, test_set),
            "distance": float((parameters(model) - exact).norm() / exact.norm()),
        }
        for name, model in trained.items()
    }


def train(way: WireFormat, seed: int, num_epochs: int) -> torch.nn.Module:
    """Train in lockstep, so that two runs differ by their wire alone."""
    torch.manual_seed(seed)
    model = digits.Net()
    loader = elche.DataLoader(digits.load()[0], batch_size=8, shuffle=True, seed=seed)
    optimizer = elche.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        named_parameters=model.named_parameters(),
        loader=loader,
        cadence=elche.Cadence(policy="sync"),
        compression=way,
    )
    for _ in range(num_epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def parameters(model: torch.nn.Module) -> torch.Tensor:
    """Return all of them as one vector of float64."""
    return torch.cat([parameter.detach().double().reshape(-1) for parameter in model.parameters()])


def timed_sum(dtype: torch.dtype | None) -> Callable[[], float]:
    """Return what sums a bucket over the ranks, once, and returns the seconds it took."""
    comm = current().comm
    own_n = torch.randn(MEGABYTES * 2**18, generator=torch.Generator().manual_seed(comm.rank))
    sum_n = torch.empty_like(own_n)
    on_wire = None if dtype is None else WireSum(HostTransport(comm), dtype, own_n)

    def once() -> float:
        comm.agree(True)
        began = time.perf_counter()
        if on_wire is None:
            comm.all_reduce([own_n.numpy()], [sum_n.numpy()])
        else:
            on_wire.all_reduce(own_n, sum_n)
        return float(np.max(comm.all_gather(np.array([time.perf_counter() - began]))))

    return once


def main(args: argparse.Namespace) -> None:
    """Measure and report."""
    header = harness.conditions()
    given = ["--seeds", str(args.seeds), "--epochs", str(args.epochs), "--repeats", str(args.repeats)]
    learned = harness.launch(__file__, NUM_RANKS, *given)
    timed = {n: harness.launch(__file__, n, *given, "--timed") for n in TIMED_RANKS}
    rows = []
    for name in WAYS:
        accuracy = Spread.of([one[name]["accuracy"] for one in learned])
        distance = Spread.of([one[name]["distance"] for one in learned])
        times = [
            Spread.of([one[name] / one["float32"] for one in repeats]).format(".2f")
            if name in repeats[0]
            else ""
            for repeats in timed.values()
        ]
        rows.append([name, accuracy.format(".1f", 100), distance.format(".1e"), *times])
    head = ["gradients travel as", "test accuracy, %", "distance from float32"]
    table = harness.markdown_table(
        [*head, *(f"time of a sum over {n} ranks, float32 = 1" for n in TIMED_RANKS)], rows
    )
    text = harness.paragraph(
        f"Digits in lockstep on {NUM_RANKS} ranks, {args.epochs} epochs, {args.seeds} seeds; the distance is "
        f"that of the final parameters, over their norm. Sums are of {MEGABYTES} MB of float32 among ranks "
        "of one machine, where bytes cost next to nothing: compression is for networks. Medians, 20 % and "
        "80 % quantiles."
    )
    harness.report("compression", header, f"{text}\n\n{table}", {"learned": learned, "timed": timed})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--timed", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    work(arguments) if harness.is_worker() else main(arguments)
