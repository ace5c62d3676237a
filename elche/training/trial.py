"""A training of a moment, by which `elche-doctor` judges: `elche-run -np 3 -m elche.training.trial`.

All ranks sum a few buffers and train a small layer; with --lose-one the first then kills another of its host,
and the rest finish the epoch. The first prints what it has measured, one JSON object.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elche.comm.base import Comm, all_gather_bytes
from elche.config import Cadence
from elche.start import init, shutdown
from elche.training.loader import DataLoader
from elche.training.optimizer import DistributedOptimizer
from elche.world import current

FLAG = "--lose-one"
BATCH_SIZE, WIDTH = 4, 128
BATCHES_PER_RANK, UPDATES_BEFORE = 64, 8
SMALL_NUMBERS, SMALL_TIMES = 1, 51
LARGE_NUMBERS, LARGE_TIMES = 1 << 20, 9


def main(argv: Sequence[str]) -> None:
    """Try it.

    Args:
        argv: the arguments, --lose-one or none.
    """
    init()
    world = current()
    begun, num_ranks, rank = time.monotonic(), world.size, world.rank
    mine = {"pid": os.getpid(), "host": socket.gethostname()}
    mine |= {"cpus": len(os.sched_getaffinity(0)), "threads": torch.get_num_threads()}
    ranks = [json.loads(text) for text in all_gather_bytes(world.comm, json.dumps(mine).encode())]
    figures = {"num_ranks": num_ranks, "device": world.device.type, "ranks": ranks, **measure(world.comm)}
    victims = [other["pid"] for other in ranks[1:] if other["host"] == mine["host"]]
    figures |= train(victims[-1] if FLAG in argv and rank == 0 and victims else None, num_ranks)
    if rank == 0:
        figures |= {"num_ranks_left": current().size, "seconds": time.monotonic() - begun}
        sys.stdout.write(json.dumps(figures) + "\n")
    shutdown()


def measure(comm: Comm) -> dict[str, Any]:
    """Return what summing costs: "small_ms" for 4 bytes, "large_ms" for 4 MiB, and "sum" of one 1 a rank."""
    small, total = np.ones(SMALL_NUMBERS, np.float32), np.empty(SMALL_NUMBERS, np.float32)
    large, sums = np.ones(LARGE_NUMBERS, np.float32), np.empty(LARGE_NUMBERS, np.float32)
    return {
        "small_ms": _median_ms(SMALL_TIMES, lambda: comm.all_reduce([small], [total])),
        "large_ms": _median_ms(LARGE_TIMES, lambda: comm.all_reduce([large], [sums])),
        "large_bytes": large.nbytes,
        "sum": float(total[0]),
    }


def train(victim: int | None, num_ranks: int) -> dict[str, Any]:
    """Train one epoch.

    Args:
        victim: the process that this rank kills after a few updates; None: it kills none.
        num_ranks: how many ranks begin.

    Returns:
        "num_updates", and "next_update_ms": from the kill to the next update, None without one.
    """
    torch.manual_seed(0)
    device = current().device
    layer = nn.Linear(WIDTH, WIDTH).to(device)
    x = torch.randn(BATCHES_PER_RANK * num_ranks * BATCH_SIZE, WIDTH)
    loader = DataLoader(TensorDataset(x), batch_size=BATCH_SIZE)
    optimizer: Any = DistributedOptimizer(
        torch.optim.SGD(layer.parameters(), lr=0.01),
        named_parameters=layer.named_parameters(),
        loader=loader,
        cadence=Cadence(policy="sync"),  # else a rank ten times faster ends the epoch before the kill
    )
    killed_at = updated_at = None
    for batch in loader:
        if victim is not None and killed_at is None and optimizer.num_updates >= UPDATES_BEFORE:
            killed_at = time.monotonic()
            os.kill(victim, signal.SIGKILL)
        optimizer.zero_grad()
        loss: Any = layer(batch[0].to(device)).square().mean()
        loss.backward()
        optimizer.step()
        if killed_at is not None and updated_at is None and optimizer.updated:
            updated_at = time.monotonic()
    healed = None if killed_at is None or updated_at is None else 1e3 * (updated_at - killed_at)
    return {"num_updates": optimizer.num_updates, "next_update_ms": healed}


def _median_ms(times: int, call: Callable[[], None]) -> float:
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(taken)


if __name__ == "__main__":
    main(sys.argv[1:])
