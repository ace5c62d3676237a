"""What only shows after many repeats: each kind once here, the long version with `make soak`."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest
import torch
import training_rig as rig

import elche

HERE = Path(__file__).parent
SOAK = pytest.mark.soak


@pytest.mark.parametrize("num_epochs", [20, pytest.param(1000, marks=SOAK)])
def test_memory_stays_flat_over_many_windows(monkeypatch, num_epochs):
    rig.fix_counts(monkeypatch, (2, 1), (1, 1))

    def script(rank):
        model = rig.mlp()
        plain = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.5)
        optimizer, loader = rig.distribute(model, plain, rig.samples(24), 1)
        held = []
        for _ in range(num_epochs):
            for batch in loader:
                optimizer.zero_grad()
                rig.squared(model, batch).backward()
                optimizer.step()
            if elche.rank() == 0:
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
        return held

    tracemalloc.start()
    try:
        held = rig.ranks(2, script, seconds=1000)[0]
    finally:
        tracemalloc.stop()
    # The first epochs fill caches of fixed size; after that 19 or 999 epochs may not add 64 KiB.
    assert held[-1] - held[len(held) // 4] < 2**16


@pytest.mark.timeout(900)
@pytest.mark.parametrize("repeat", [0, *(pytest.param(again, marks=SOAK) for again in range(1, 20))])
def test_a_job_that_one_rank_leaves_ends(mpirun, repeat):
    ended = mpirun(3, HERE / "run_leaving.py", timeout=60)
    assert ended.returncode in (1, 5)  # the first to end is whose code mpirun gives
    assert "RankError: rank 1: left before window 1 was closed" in ended.stderr
