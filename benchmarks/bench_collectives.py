"""Horovod's operations, beside bare mpi4py and torch's gloo on the same ranks; and many small ones at once.

python benchmarks/bench_collectives.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
import torch
import torch.distributed as dist
from harness import Spread

import elche as hvd

SIZES = {"1 KB": 1 << 10, "32 KB": 1 << 15, "1 MB": 1 << 20, "10 MB": 10 << 20, "100 MB": 100 << 20}
VERBS = ("allreduce", "allgather", "broadcast")
NUM_SMALL, SMALL_ELEMENTS, GOAL = 1000, 16, 5.0
Call = Callable[[], Any]


def work(args: argparse.Namespace) -> None:
    """Time everything; every rank runs this."""
    torch.set_num_threads(1)
    hvd.init()
    from mpi4py import MPI

    store = dist.FileStore(str(harness.worker_folder() / "gloo"), hvd.size())
    dist.init_process_group("gloo", store=store, rank=hvd.rank(), world_size=hvd.size())
    result: dict[str, Any] = {"verbs": {}, "small": small(args.repeats)}
    for verb in VERBS:
        for name, num_bytes in SIZES.items():
            ways = ways_of(verb, num_bytes, MPI.COMM_WORLD)
            times = {way: timed(call, 1 if num_bytes > 1 << 22 else 20) for way, call in ways.items()}
            result["verbs"][f"{verb} {name}"] = harness.alternate(times, args.repeats)
    dist.destroy_process_group()  # while gloo has threads a process may abort at its end
    if hvd.rank() == 0:
        harness.hand_back(result)
    hvd.shutdown()


def ways_of(verb: str, num_bytes: int, comm: Any) -> dict[str, Call]:
    """Return one call a way; an allgather's ranks send so many bytes each, over all ranks."""
    num = num_bytes // 4 // (hvd.size() if verb == "allgather" else 1)
    x, y = torch.ones(num), torch.empty(num)
    rows = [torch.empty(num) for _ in range(hvd.size())]
    flat = np.empty(num * hvd.size(), np.float32)
    calls: dict[str, dict[str, Call]] = {
        "allreduce": {
            "mpi4py": lambda: comm.Allreduce(x.numpy(), y.numpy()),
            "gloo": lambda: dist.all_reduce(y),
            "elche": lambda: hvd.allreduce_(y, op=hvd.Sum),
        },
        "allgather": {
            "mpi4py": lambda: comm.Allgather(x.numpy(), flat),
            "gloo": lambda: dist.all_gather(rows, x),
            "elche": lambda: hvd.allgather(x),
        },
        "broadcast": {
            "mpi4py": lambda: comm.Bcast(y.numpy(), 0),
            "gloo": lambda: dist.broadcast(y, 0),
            "elche": lambda: hvd.broadcast_(y, 0),
        },
    }
    return calls[verb]


def timed(call: Call, num_calls: int) -> Call:
    """Return what gives the mean milliseconds of a call, of so many in a row."""

    def run() -> float:
        hvd.barrier()
        begun = time.perf_counter()
        for _ in range(num_calls):
            call()
        return 1e3 * (time.perf_counter() - begun) / num_calls

    return run


def small(num_repeats: int) -> list[dict[str, Any]]:
    """Return the milliseconds of many small all-reduces, one by one and all at once."""
    tensors = [torch.ones(SMALL_ELEMENTS) for _ in range(NUM_SMALL)]

    def one_by_one() -> None:
        for tensor in tensors:
            hvd.allreduce_(tensor)

    def at_once() -> None:
        handles = [hvd.allreduce_async_(tensor, name=f"t{n}") for n, tensor in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)

    ways = {"one by one": timed(one_by_one, 1), "at once": timed(at_once, 1)}
    return harness.alternate(ways, num_repeats)


def text_of(results: dict[int, Any]) -> str:
    """Return the report's text, of the results by number of ranks."""
    parts = []
    for num_ranks, result in results.items():
        rows = []
        for name, repeats in result["verbs"].items():
            by_way = {way: Spread.of([repeat[way] for repeat in repeats]) for way in repeats[0]}
            rows.append([name, *(spread.format() for spread in by_way.values())])
        head = [f"ms on {num_ranks} ranks", "bare mpi4py", "torch gloo", "elche"]
        parts.append(harness.markdown_table(head, rows))
        ratio = Spread.of([repeat["one by one"] / repeat["at once"] for repeat in result["small"]])
        both = [Spread.of([repeat[way] for repeat in result["small"]]) for way in ("one by one", "at once")]
        parts.append(
            harness.paragraph(
                f"{NUM_SMALL} all-reduces of {SMALL_ELEMENTS} float32 on {num_ranks} ranks: one by one "
                f"{both[0].format('.0f')} ms, at once {both[1].format('.0f')} ms, {ratio.format('.1f')} "
                f"times faster. Goal {GOAL:g} times: {harness.goal(ratio.median >= GOAL)}."
            )
        )
    parts.append(
        harness.paragraph(
            "elche's figures are those of a call that waits: it wakes a second thread, which agrees with the "
            "other ranks on what comes next (one all-gather of 1 KB) before anything is sent. The bound is "
            "bare mpi4py, whose ranks take all of a core while they wait."
        )
    )
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    if harness.is_worker():
        work(args)
        return
    header = harness.conditions()
    options = ["--repeats", str(args.repeats)]
    results = {num_ranks: harness.launch(__file__, num_ranks, *options) for num_ranks in (2, 4)}
    harness.report("collectives", header, text_of(results), results)


if __name__ == "__main__":
    main()
