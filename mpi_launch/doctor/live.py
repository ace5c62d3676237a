"""The live test: `elche-run` starts a training of a moment, and one of its ranks is killed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from elche.mpi_launch.doctor.children import Ended, run_all
from elche.mpi_launch.doctor.probes import failure_of, one_line

TRIAL = "elche.training.trial"
FEWEST, MOST = 3, 4  # of three ranks two are left, which still sum
FORCE_SECONDS = "2"
LEFT_OUT = (
    "ELCHE_",
    "SLURM_",
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "I_MPI_HYDRA_HOST_FILE",
    "HYDRA_HOST_FILE",
)


def count_ranks(cores: int, num_gpus: int) -> int:
    """Return on how many ranks to try: one for each GPU where there are some, else as the cores have room.

    Args:
        cores: this machine's.
        num_gpus: that torch can use.

    Returns:
        2 to 4.
    """
    return min(MOST, num_gpus) if num_gpus > 1 else max(FEWEST, min(MOST, cores))


def try_out(
    num_ranks: int, shell: Mapping[str, str], *, mpirun: str, loses_one: bool, seconds: float
) -> dict[str, Any]:
    """Run it.

    Args:
        num_ranks: so many.
        shell: this process's variables.
        mpirun: which to use.
        loses_one: whether a rank is killed.
        seconds: how long it may take.

    Returns:
        "asked", "loses_one", "wall_seconds", and what `read_trial` returns.
    """
    command = [sys.executable, "-m", "elche.mpi_launch", "-np", str(num_ranks), "--mpirun", mpirun]
    command += ["--kill-seconds", FORCE_SECONDS, "-m", TRIAL, *(["--lose-one"] if loses_one else [])]
    begun = time.monotonic()
    ended = run_all({"live": command}, seconds, variables_of(shell))["live"]
    wall = time.monotonic() - begun
    return {"asked": num_ranks, "loses_one": loses_one, "wall_seconds": wall, **read_trial(ended, seconds)}


def variables_of(shell: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which the test runs: without any that would write a log or ask other hosts.

    Args:
        shell: this process's.

    Returns:
        Those that are left.
    """
    return {name: value for name, value in shell.items() if not name.startswith(LEFT_OUT)}


def read_trial(ended: Ended, seconds: float) -> dict[str, Any]:
    """Return what the test has told.

    Args:
        ended: how it ended.
        seconds: how long it was given.

    Returns:
        The figures of `elche.training.trial`; "told", what elche said of it; an "error" where it failed.
    """
    found: dict[str, Any] = {"told": [line for line in ended.err.splitlines() if line.startswith("elche")]}
    for line in ended.out.splitlines():
        if line.startswith('{"num_ranks"'):
            with suppress(ValueError):  # it is torn
                found |= json.loads(line)
                break  # where each process is a world of its own, each tells
    words = [line for line in ended.err.splitlines() if any(map(str.isalpha, line))]
    reasons = [line for line in words if not line.startswith("elche-run")]  # it says that it failed, not why
    failure = failure_of(replace(ended, err="\n".join(reasons or words)), seconds)
    if failure is None and "num_ranks" not in found:
        failure = f"it tells no figures: {ended.out.strip() or 'nothing'}"
    if failure is not None:
        found["error"] = one_line(failure)
    return found
