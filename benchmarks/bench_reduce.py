"""The sum of a window's gradients over the ranks of one host, beside a bare MPI all-reduce and torch's gloo.

python benchmarks/bench_reduce.py
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
from harness import Spread, goal

import elche
from elche.training.buckets import Bucket, make_buckets
from elche.training.shared_reducer import Home, SharedReducer
from elche.world import current

NUM_RANKS = (2, 4)
MEGABYTES = (0.004, 0.1, 1, 4, 25, 100, 400)
OUT_OF_PLACE, IN_PLACE, BOUND = 2.0, 1.3, 1.5  # goals, from GOAL_MEGABYTES on
GOAL_MEGABYTES = 4
LEAST_SECONDS = 0.02  # of a repeat: small sums are made several times


def work(args: argparse.Namespace) -> None:
    """Measure at this world size; every rank runs this."""
    torch.set_num_threads(1)
    elche.init()
    from mpi4py import MPI  # starts MPI, which the launching process must not

    ranks = MPI.COMM_WORLD
    store = dist.FileStore(str(harness.worker_folder() / f"gloo-{ranks.size}"), ranks.size)
    dist.init_process_group("gloo", store=store, rank=ranks.rank, world_size=ranks.size)
    results = {}
    for megabytes in args.megabytes:
        methods = methods_for(round(megabytes * 250_000), ranks)
        for once in methods.values():
            once()
        calls = {name: calls_in_time(once, ranks) for name, once in methods.items()}
        timed = {name: timed_calls(methods[name], calls[name], ranks) for name in methods}
        results[megabytes] = harness.alternate(timed, args.repeats)
    dist.destroy_process_group()
    if ranks.rank == 0:
        harness.hand_back([[megabytes, repeats] for megabytes, repeats in results.items()])
    elche.shutdown()


def methods_for(numel: int, ranks: Any) -> dict[str, Callable[[], Any]]:
    """Return the ways to sum so many float32 numbers."""
    comm = current().comm
    gradient_n = torch.randn(numel, generator=torch.Generator().manual_seed(ranks.rank))
    (bucket,) = make_buckets([gradient_n], cap_bytes=4 * numel)
    reducer = SharedReducer(comm, Home([bucket]), f"bench-{numel}")
    assert reducer.connect() is None
    own, total = gradient_n.numpy().copy(), np.empty(numel, np.float32)
    gloo_n, copied_n = gradient_n.clone(), torch.empty_like(gradient_n)

    def elche_sum() -> None:
        reducer.all_reduce([bucket], [], [], stands=True)
        comm.agree(True)

    def pack_to_commit() -> None:
        bucket.accumulate_([gradient_n], 1.0, first=True, nonfinite=None)
        comm.agree(True)  # the exchange
        elche_sum()
        bucket.unpack_([copied_n], 1.0 / ranks.size)

    check(elche_sum, bucket, ranks)
    return {
        "elche": elche_sum,
        "pack to commit": pack_to_commit,
        "MPI": lambda: ranks.Allreduce(own, total),
        "MPI in place": lambda: ranks.Allreduce(_in_place(), total),
        "gloo": lambda: dist.all_reduce(gloo_n),
        "copy": lambda: copied_n.copy_(gradient_n),
    }


def _in_place() -> Any:
    from mpi4py import MPI

    return MPI.IN_PLACE


def check(elche_sum: Callable[[], None], bucket: Bucket, ranks: Any) -> None:
    """All ranks have the sum, in rank order."""
    bucket.own_n.fill_(1.0 + ranks.rank)
    ranks.Barrier()
    elche_sum()
    expected = ranks.size * (ranks.size + 1) / 2
    assert float(bucket.sum_n.min()) == float(bucket.sum_n.max()) == expected
    ranks.Barrier()


def calls_in_time(once: Callable[[], Any], ranks: Any) -> int:
    """Return how many calls fill a repeat, the same on all ranks."""
    begun = time.perf_counter()
    once()
    return int(ranks.bcast(max(1, int(LEAST_SECONDS / max(1e-7, time.perf_counter() - begun)))))


def timed_calls(once: Callable[[], Any], num_calls: int, ranks: Any) -> Callable[[], float]:
    """Return what makes these calls on all ranks at once, and returns the milliseconds that one took."""

    def run() -> float:
        ranks.Barrier()
        begun = time.perf_counter()
        for _ in range(num_calls):
            once()
        spent = time.perf_counter() - begun
        return 1e3 * max(ranks.allgather(spent)) / num_calls

    return run


def row(num_ranks: int, megabytes: float, repeats: list[dict[str, float]]) -> tuple[list[str], list[bool]]:
    """Return a line of the table, and whether each goal is met."""

    def ratio(over: str, under: str = "elche", factor: float = 1.0) -> Spread:
        return Spread.of([factor * one[over] / one[under] for one in repeats])

    out_of_place, in_place = ratio("MPI"), ratio("MPI in place")
    # A copy on all ranks moves 2 n buckets; the sum reads n and writes one.
    bound = ratio("elche", "copy", 2 * num_ranks / (num_ranks + 1))
    met = [min(out_of_place.high, in_place.high) >= 1.0]
    if megabytes >= GOAL_MEGABYTES:
        met += [out_of_place.median >= OUT_OF_PLACE, in_place.median >= IN_PLACE, bound.median <= BOUND]
    times = [Spread.of([one[name] for one in repeats]) for name in repeats[0] if name != "copy"]
    texts = [time.format(".3g") for time in times]
    ratios = [out_of_place.format(".2f"), in_place.format(".2f"), bound.format(".2f")]
    return [str(num_ranks), f"{megabytes:g}", *texts, *ratios, goal(all(met))], met


def main(args: argparse.Namespace) -> None:
    """Measure and report."""
    header = harness.conditions()
    given = ["--repeats", str(args.repeats), "--megabytes", *map(str, args.megabytes)]
    results = {num_ranks: harness.launch(__file__, num_ranks, *given) for num_ranks in NUM_RANKS}
    rows = [
        row(num_ranks, megabytes, repeats)[0]
        for num_ranks, measured in results.items()
        for megabytes, repeats in measured
    ]
    head = ["ranks", "MB", "elche, ms", "pack to commit, ms", "MPI, ms", "MPI in place, ms", "gloo, ms"]
    ratios = ["MPI / elche", "in place / elche", "elche / bound", "goals"]
    text = harness.paragraph(
        "float32, medians (20 % to 80 %), alternated repeats of as many calls as fill 20 ms. elche: the sum "
        "in shared memory and the agreement after it; pack to commit: the gradient into the bucket, an "
        "exchange, that, and the mean into the gradient. Ratios are of one repeat. Bound: the bytes that a "
        "sum has to read and write, at the pace of a copy on all ranks at once, which a cache may speed up. "
        f"Goals: from {GOAL_MEGABYTES} MB on MPI takes at least {OUT_OF_PLACE} times as long and in place "
        f"{IN_PLACE} times, the bound is kept within {BOUND}; at no size MPI is faster beyond the spread."
    )
    harness.report("reduce", header, f"{text}\n\n{harness.markdown_table([*head, *ratios], rows)}", results)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--megabytes", type=float, nargs="+", default=MEGABYTES)
    arguments = parser.parse_args()
    work(arguments) if harness.is_worker() else main(arguments)
