"""Start a trial: on threads of this process, or on this rank of an MPI job."""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import elche
from elche.comm import memory
from elche.comm.base import Comm, all_gather_bytes
from elche.world import current
from trials.clock import emulated
from trials.laws import Trial
from trials.scenarios import Scenario
from trials.training import Record, logging_to, read_log, schedule_of, train


def in_memory(scenario: Scenario, n: int, folder: Path) -> Trial:
    """Train twice on `n` threads."""

    def rank(comm: Comm, seed: int) -> Record:
        elche.init(comm)
        try:
            return train(scenario, seed)
        finally:
            elche.shutdown()

    both = []
    for name in ("first", "again"):
        with surroundings(scenario, folder / name):
            both.append(memory.run(n, rank, 0))
    return Trial(scenario, *both, read_log(folder / "first", scenario, n))


def under_mpi(scenario: Scenario, folder: Path) -> Trial | None:
    """Train twice on all ranks of this job; collective. Rank 0 gets the trial."""
    both: list[Any] = []
    for name in ("first", "again"):
        with surroundings(scenario, folder / name):
            elche.init()
            records = all_gather_bytes(current().comm, pickle.dumps(train(scenario)))
            rank, size = elche.rank(), elche.size()
            elche.shutdown()
        both.append([pickle.loads(record) for record in records] if rank == 0 else [])
    return Trial(scenario, *both, read_log(folder / "first", scenario, size)) if rank == 0 else None


def surroundings(scenario: Scenario, folder: Path) -> ExitStack:
    """The clock, the schedule and the log of a scenario."""
    with ExitStack() as stack:
        for one in (emulated(scenario.ms), schedule_of(scenario), logging_to(folder, scenario)):
            stack.enter_context(one)
        return stack.pop_all()
