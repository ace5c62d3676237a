"""Start a trial: on threads of this process, or on this rank of an MPI job."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import elche
from elche.comm import memory
from elche.comm.base import Comm, all_gather_bytes
from elche.world import current
from trials.clock import emulated
from trials.laws import Trial
from trials.scenarios import Scenario
from trials.training import Record, logging_to, read_log, schedule_of, train


def in_memory(scenario: Scenario, n: int, folder: Path) -> Trial:
    """Train on `n` threads."""

    def one_rank(comm: Comm) -> Record:
        elche.init(comm)
        try:
            return train(scenario)
        finally:
            elche.shutdown()

    return observed(scenario, lambda: memory.run(n, one_rank), folder)


def under_mpi(scenario: Scenario, folder: Path) -> Trial | None:
    """Train on all ranks of this job; collective. Rank 0 gets the trial."""

    def all_ranks() -> list[Record]:
        elche.init()
        records = all_gather_bytes(current().comm, pickle.dumps(train(scenario)))
        first = elche.rank() == 0
        elche.shutdown()
        return [pickle.loads(record) for record in records] if first else []

    return observed(scenario, all_ranks, folder)


def observed(scenario: Scenario, run: Callable[[], list[Record]], folder: Path) -> Trial | None:
    """Run in the scenario's surroundings; None where there are no records."""
    records, warned = surrounded(scenario, run, folder / "first")
    again, _ = surrounded(scenario, run, folder / "again") if scenario.repeated else ([], [])
    if not records:
        return None
    return Trial(scenario, records, read_log(folder / "first", scenario, len(records)), warned, again)


def surrounded(
    scenario: Scenario, run: Callable[[], list[Record]], folder: Path
) -> tuple[list[Record], list[str]]:
    """Run with the scenario's clock, schedule and log; return also the texts of warnings."""
    with ExitStack() as stack:
        for one in (emulated(scenario.ms), schedule_of(scenario), logging_to(folder, scenario)):
            stack.enter_context(one)
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        for category in (RuntimeWarning, UserWarning):
            warnings.simplefilter("always", category)
        return run(), [str(warning.message) for warning in caught]
