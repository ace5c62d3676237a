"""The fixed cost of a window, everything but compute and bytes, and the controller's cost at many slots.

python benchmarks/bench_window.py
"""

from __future__ import annotations

import argparse
import functools
import random
import statistics
import time
from collections import defaultdict
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
from elche.training.gradients import Gradients
from elche.training.window import WindowEngine

GOAL_MS, GOAL_RANKS = 0.3, 4
GOAL_CONTROLLER_MS = {8: 1.0, 1024: 1.0, 16384: 20.0}
NUM_PARAMETERS, NUM_ELEMENTS = 10, 16
INTERVAL_SECONDS = 0.004
# Where a window's time goes, by the engine's own methods; "agree" is what `_close` does besides.
STAGES = {"_exchange": "exchange", "_reduce": "reduce", "_commit": "commit"}


def work(args: argparse.Namespace) -> None:
    """Measure the window at this world size; every rank runs this."""
    torch.set_num_threads(1)
    elche.init()
    from mpi4py import MPI  # starts MPI, which the launching process must not

    world = MPI.COMM_WORLD
    spent = time_stages()
    methods: dict[str, Callable[[], Any]] = {
        "elche": lambda: meet(world, *elche_window(args.windows), 2 * args.windows),
        "optimizer": lambda: meet(world, nothing, tiny_model()[1].step, 2 * args.windows),
        "bare MPI": lambda: meet(world, nothing, bare_collectives(world), 2 * args.windows),
    }
    repeats = [measure(**times) for times in harness.alternate(methods, args.repeats)]
    split = {stage: 1e3 * statistics.median(seconds) for stage, seconds in spent.items()}
    splits = world.allgather(split)
    if world.rank == 0:
        mean = {stage: statistics.mean(one[stage] for one in splits) for stage in split}
        harness.hand_back({"ranks": world.size, "windows": args.windows, "repeats": repeats, "split": mean})


def measure(**milliseconds: list[float]) -> dict[str, float]:
    """Return the medians of one repeat; elche's steps are in turn a window's first batch and its last."""
    median = {name: statistics.median(times) for name, times in milliseconds.items()}
    first, last = (statistics.median(milliseconds["elche"][i::2]) for i in (0, 1))
    fixed = last - first - median["optimizer"]
    return {"first": first, "last": last, "fixed": fixed, **median}


def meet(world: Any, before: Callable[[], object], step: Callable[[], object], num_steps: int) -> list[float]:
    """Return, for each step, the milliseconds from the last rank's arrival to the last one's departure.

    Ranks sleep until a common moment (one clock serves all processes of a host), so that they arrive together
    and none has anything else to do.
    """
    start = world.bcast(time.perf_counter() + 0.05)
    arrived, left = [], []
    for i in range(num_steps):
        before()
        time.sleep(max(0.0, start + i * INTERVAL_SECONDS - time.perf_counter()))
        arrived.append(time.perf_counter())
        step()
        left.append(time.perf_counter())
    by_rank = world.allgather((arrived, left))
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


def bare_collectives(world: Any) -> Callable[[], None]:
    """Return the window's three collectives as bare, spinning MPI calls."""
    row, rows = np.zeros(20), np.zeros((world.size, 20))
    bucket, total = (np.zeros(NUM_ELEMENTS * NUM_PARAMETERS, np.float32) for _ in range(2))
    said, heard = np.zeros(1, np.uint8), np.zeros(world.size, np.uint8)

    def step() -> None:
        world.Allgather(row, rows)
        world.Allreduce(bucket, total)
        world.Allgather(said, heard)

    return step


def nothing() -> None:
    """What comes before a step that needs no batch."""


def time_stages() -> dict[str, list[float]]:
    """Time the stages of every window from now on; returns the seconds by stage."""
    spent: dict[str, list[float]] = defaultdict(list)

    def timed(owner: type, method: str, stage: str) -> None:
        inner = getattr(owner, method)

        @functools.wraps(inner)
        def outer(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                spent[stage].append(time.perf_counter() - started)

        setattr(owner, method, outer)

    timed(Gradients, "accumulate", "accumulate")
    timed(WindowEngine, "_close", "close")
    for method, stage in STAGES.items():
        timed(WindowEngine, method, stage)
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
        collectives as blocking, spinning MPI calls. Goal: below {GOAL_MS} ms at {GOAL_RANKS} ranks.""")
    head = ["ranks", "closing step", "accumulating step", "plain optimizer", "bare MPI", "fixed cost", "goal"]
    windows = harness.markdown_table(head, [window_row(world) for world in worlds])
    stages = harness.paragraph("""
        Where the time goes, ms, medians, mean over ranks. Waiting for the others is in exchange, reduce and
        agree; taking these times costs some microseconds itself.""")
    head = ["ranks", "accumulate", "exchange", "reduce", "agree", "commit"]
    split = harness.markdown_table(head, [split_row(world) for world in worlds])
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
    return "\n\n".join([setting, windows, stages, split, controlling, cost])


def window_row(world: dict[str, Any]) -> list[str]:
    """Return one line of the first table."""
    names = ("last", "first", "optimizer", "bare MPI", "fixed")
    spreads = [Spread.of([repeat[name] for repeat in world["repeats"]]) for name in names]
    outcome = goal(spreads[-1].median < GOAL_MS) if world["ranks"] == GOAL_RANKS else ""
    return [str(world["ranks"]), *(spread.format() for spread in spreads), outcome]


def split_row(world: dict[str, Any]) -> list[str]:
    """Return one line of the second table; what `_close` does besides its stages is the agreement."""
    split = world["split"]
    agree = split["close"] - sum(split[stage] for stage in STAGES.values())
    times = [split["accumulate"], split["exchange"], split["reduce"], agree, split["commit"]]
    return [str(world["ranks"]), *(f"{ms:.3f}" for ms in times)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--windows", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    if harness.is_worker():
        return work(args)
    header = harness.conditions()
    settings = ("--windows", str(args.windows), "--repeats", str(args.repeats))
    worlds = [harness.launch(__file__, num_ranks, *settings) for num_ranks in (2, 4)]
    controller = {num_slots: controller_ms(num_slots) for num_slots in GOAL_CONTROLLER_MS}
    return harness.report(
        "window", header, render(worlds, controller), {"worlds": worlds, "controller_ms": controller}
    )


if __name__ == "__main__":
    main()
