"""The fixed cost of a window, everything but compute and bytes, and the controller's cost at many slots.

python benchmarks/bench_window.py
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
import torch
from harness import Spread, goal
from torch import nn
from torch.utils.data import TensorDataset

import elche
from elche.policy import ElChe, Verdict, WindowReport
from elche.world import current

NUM_RANKS = (1, 2, 4)
GOAL_MS, GOAL_RANKS = 0.3, 4
GOAL_CONTROLLER_MS = {8: 1.0, 1024: 1.0, 16384: 20.0}
NUM_PARAMETERS, NUM_ELEMENTS = 10, 16
VERBS = ("all_gather", "all_reduce", "agree")


def work(args: argparse.Namespace) -> None:
    """Measure the window at this world size; every rank runs this."""
    torch.set_num_threads(1)
    elche.init()
    from mpi4py import MPI  # starts MPI, which the launching process must not

    ranks = MPI.COMM_WORLD
    methods: dict[str, Callable[[], Any]] = {
        "elche": lambda: meet(ranks, *elche_window(args.windows), 2 * args.windows),
        "optimizer": lambda: meet(ranks, nothing, tiny_model()[1].step, 2 * args.windows),
        "bare MPI": lambda: meet(ranks, nothing, bare_collectives(ranks), 2 * args.windows),
    }
    repeats = [measure(**times) for times in harness.alternate(methods, args.repeats)]
    spent = time_verbs()
    meet(ranks, *elche_window(args.windows), 2 * args.windows)
    typical = {verb: statistics.median(times) if times else 0.0 for verb, times in spent.items()}
    medians = ranks.allgather(typical)  # 0: a verb that this window has no use for
    if ranks.rank == 0:
        verbs = {verb: statistics.mean(one[verb] for one in medians) for verb in VERBS}
        harness.hand_back({"ranks": ranks.size, "windows": args.windows, "repeats": repeats, "verbs": verbs})


def measure(**milliseconds: list[float]) -> dict[str, float]:
    """Return the medians of one repeat; elche's steps are in turn a window's first batch and its last."""
    median = {name: statistics.median(times) for name, times in milliseconds.items()}
    first, last = (statistics.median(milliseconds["elche"][i::2]) for i in (0, 1))
    fixed = last - first - median["optimizer"]
    return {"first": first, "last": last, "fixed": fixed, **median}


def meet(ranks: Any, before: Callable[[], object], step: Callable[[], object], num_steps: int) -> list[float]:
    """Return, for each step, the milliseconds from the last rank's arrival to the last one's departure.

    A barrier before each step lets the ranks arrive together; one clock serves all processes of a host.
    """
    arrived, left = [], []
    for _ in range(num_steps):
        before()
        ranks.Barrier()
        arrived.append(time.perf_counter())
        step()
        left.append(time.perf_counter())
    by_rank = ranks.allgather((arrived, left))
    last_arrival = [max(times) for times in zip(*(arrived for arrived, _ in by_rank), strict=True)]
    last_departure = [max(times) for times in zip(*(left for _, left in by_rank), strict=True)]
    return [1e3 * (b - a) for a, b in zip(last_arrival, last_departure, strict=True)]


def tiny_model() -> tuple[nn.ParameterList, torch.optim.Optimizer]:
    """Return a model of ten small parameters with gradients, and its optimizer."""
    model = nn.ParameterList(nn.Parameter(torch.ones(NUM_ELEMENTS)) for _ in range(NUM_PARAMETERS))
    for parameter in model:
        parameter.grad = torch.ones(NUM_ELEMENTS)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def elche_window(num_windows: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return what takes a batch of one sample and what steps on it; two of them are a window."""
    model, plain = tiny_model()
    data = TensorDataset(torch.zeros(2 * num_windows * elche.size(), 1))
    loader = elche.DataLoader(data, batch_size=1)
    optimizer = elche.DistributedOptimizer(
        plain,
        named_parameters=model.named_parameters(),
        loader=loader,
        cadence=elche.Cadence(policy="sync", anchor=2),
    )
    batches = iter(loader)
    return lambda: next(batches), optimizer.step


def bare_collectives(ranks: Any) -> Callable[[], None]:
    """Return the window's three collectives as bare, spinning MPI calls."""
    row, rows = np.zeros(20), np.zeros((ranks.size, 20))
    bucket, total = (np.zeros(NUM_ELEMENTS * NUM_PARAMETERS, np.float32) for _ in range(2))
    said, heard = np.zeros(1, np.uint8), np.zeros(ranks.size, np.uint8)

    def step() -> None:
        ranks.Allgather(row, rows)
        ranks.Allreduce(bucket, total)
        ranks.Allgather(said, heard)

    return step


def nothing() -> None:
    """What comes before a step that needs no batch."""


def time_verbs() -> dict[str, list[float]]:
    """Time what the ranks say to each other from now on; returns the milliseconds by verb."""
    comm = current().comm
    spent: dict[str, list[float]] = {verb: [] for verb in VERBS}

    def timed(verb: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def outer(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            result = inner(*args, **kwargs)
            spent[verb].append(1e3 * (time.perf_counter() - started))
            return result

        return outer

    for verb in VERBS:
        setattr(comm, verb, timed(verb, getattr(comm, verb)))
    return spent


def controller_ms(num_slots: int, num_reports: int = 21) -> float:
    """Return the median milliseconds of report_window + apply_verdict at `num_slots` slots."""
    draw = random.Random(0)
    speeds = [draw.uniform(1, 10) for _ in range(num_slots)]
    controller = ElChe(num_slots, 2)
    times = []
    for _ in range(num_reports):
        steps = list(controller.batch_counts)
        wall_ms = [
            count * 40 / speed * draw.uniform(0.98, 1.02) for count, speed in zip(steps, speeds, strict=True)
        ]
        window = WindowReport(
            wall_ms=wall_ms,
            steps=steps,
            delivered_ms=wall_ms,
            delivered_batches=steps,
            fill_ms=[0.0] * num_slots,
            delivered_coherent=True,
            sync_ms=0.5,
        )
        started = time.perf_counter()
        controller.report_window(window)
        controller.apply_verdict(Verdict.stable())
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def render(worlds: list[dict[str, Any]], controller: dict[int, float]) -> str:
    """Return the report's text."""
    setting = harness.paragraph(f"""
        Ranks arrive together, each with the gradients of one sample for {NUM_PARAMETERS} parameters of
        {NUM_ELEMENTS} elements; two batches make a window. A step lasts from the last rank's arrival to the
        last one's departure; median over {worlds[0]["windows"]} windows, median (20 % to 80 %) over
        {len(worlds[0]["repeats"])} alternated repeats, ms. Fixed cost: the step that closes the window, less
        a step that only accumulates, less the plain optimizer's, in pairs. "bare MPI": the window's three
        collectives as blocking, spinning MPI calls. With more ranks than cores ({os.cpu_count()} here) their
        own instructions wait for each other. Goal: below {GOAL_MS} ms at {GOAL_RANKS} ranks.""")
    head = ["ranks", "closing step", "accumulating step", "plain optimizer", "bare MPI", "fixed cost", "goal"]
    windows = harness.markdown_table(head, [window_row(one) for one in worlds])
    talking = harness.paragraph("""
        Of the closing step, ms, medians, mean over ranks: what the ranks say to each other, waiting for each
        other's Python included. The rest is Python: ledger, policy, deal, packing.""")
    rows = [[str(one["ranks"]), *(f"{one['verbs'][verb]:.3f}" for verb in VERBS)] for one in worlds]
    verbs = harness.markdown_table(["ranks", *VERBS], rows)
    rows = [
        [
            f"{slots:,}",
            f"{ms:.2f}",
            f"below {GOAL_CONTROLLER_MS[slots]:g}",
            goal(ms < GOAL_CONTROLLER_MS[slots]),
        ]
        for slots, ms in controller.items()
    ]
    cost = harness.markdown_table(["slots", "ms", "goal", ""], rows)
    controlling = "The controller, report_window + apply_verdict, medians:"
    return "\n\n".join([setting, windows, talking, verbs, controlling, cost])


def window_row(one: dict[str, Any]) -> list[str]:
    """Return one line of the first table."""
    names = ("last", "first", "optimizer", "bare MPI", "fixed")
    spreads = [Spread.of([repeat[name] for repeat in one["repeats"]]) for name in names]
    outcome = goal(spreads[-1].median < GOAL_MS) if one["ranks"] == GOAL_RANKS else ""
    return [str(one["ranks"]), *(spread.format() for spread in spreads), outcome]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--windows", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    if harness.is_worker():
        return work(args)
    header = harness.conditions()
    settings = ("--windows", str(args.windows), "--repeats", str(args.repeats))
    worlds = [harness.launch(__file__, num_ranks, *settings) for num_ranks in NUM_RANKS]
    controller = {num_slots: controller_ms(num_slots) for num_slots in GOAL_CONTROLLER_MS}
    return harness.report(
        "window", header, render(worlds, controller), {"worlds": worlds, "controller_ms": controller}
    )


if __name__ == "__main__":
    main()
