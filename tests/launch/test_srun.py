"""`elche.init()` where srun has started the script: it works, or says what to do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

INIT = "import elche; elche.init(); print(elche.rank(), elche.size()); elche.shutdown()"
STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}
BY_SRUN = "srun --mpi=pmix for Open MPI, srun --mpi=pmi2 for MPICH and Intel MPI (srun --mpi=list tells"


def start(shell: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", INIT],
        env={**os.environ, **shell},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_tasks_that_know_of_no_mpi_are_told_what_to_do() -> None:
    ran = start(STEP)
    assert ran.returncode == 1
    said = "srun has started 4 tasks and told them of no MPI, so each would train alone: start with"
    assert f"ConfigError: {said} {BY_SRUN}" in ran.stderr


@pytest.mark.parametrize(
    "shell", [{**STEP, "ELCHE_BACKEND": "memory"}, {**STEP, "SLURM_STEP_NUM_TASKS": "1"}]
)
def test_one_that_shall_train_alone_does(shell: dict[str, str]) -> None:
    ran = start(shell)
    assert (ran.returncode, ran.stdout) == (0, "0 1\n")


@pytest.mark.usefixtures("ulfm")
def test_a_pmi_that_this_mpi_does_not_speak_is_named() -> None:
    ran = start(
        {**STEP, "PMI_RANK": "1", "PMI_SIZE": "4"}
    )  # what srun --mpi=pmi2 tells; Open MPI 5 is deaf to it
    assert ran.returncode == 1
    assert (
        "ConfigError: 4 processes were started, but MPI knows of 1, so each would train alone: " in ran.stderr
    )
    assert BY_SRUN in ran.stderr
