"""--dry-run shows the command that would run; an MPI that is not here is a script that tells its version."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elche.mpi_launch.dry_run import describe_start

RUN = [sys.executable, "-m", "elche.mpi_launch"]
SCRIPT = Path(__file__).with_name("run_rank.py")
OPEN_MPI_4, MPICH = "mpirun (Open MPI) 4.1.4", "HYDRA build details:\n    Version:   4.2.0"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005"
FAKE = """#!/bin/sh
if [ "$1" = --version ]; then cat "{folder}/version"; exit; fi
printf '%s\\n' "$0" "$@" > "{folder}/words"
env > "{folder}/env"
"""


@pytest.fixture
def fake(tmp_path: Path) -> Callable[[str], Path]:
    """`fake(version)`: the path of an mpirun that is none, but notes its words and its environment."""

    def make(version: str) -> Path:
        (tmp_path / "version").write_text(version)
        (tmp_path / "mpirun").write_text(FAKE.format(folder=tmp_path))
        (tmp_path / "mpirun").chmod(0o755)
        return tmp_path / "mpirun"

    return make


def run(*words: str, **shell: str) -> subprocess.CompletedProcess[str]:
    command = [*RUN, *words]
    return subprocess.run(
        command, env={**os.environ, **shell}, capture_output=True, text=True, timeout=120, check=False
    )


def test_variables_come_first_and_all_is_quoted_for_a_shell() -> None:
    job = {"SAME": "1", "CHANGED": "a b", "NEW": "x"}
    shown = describe_start(["mpirun", "-np", "2", "a b.py"], job, {"SAME": "1", "CHANGED": "a"})
    assert shown == "CHANGED='a b'\nNEW=x\nmpirun -np 2 'a b.py'"


@pytest.mark.parametrize(
    ("version", "options", "expected"),
    [
        (
            OPEN_MPI_4,
            ("-np", "2", "-H", "localhost:2", "--prefix-output", "--network-interfaces", "lo"),
            "--host localhost:2 --mca btl_tcp_if_include lo --tag-output -np 2 {python} -m "
            "elche.mpi_launch.guard --seats 0 --kill-seconds 60 {script} 3",
        ),
        (
            MPICH,
            ("-H", "localhost:1,127.0.0.1:2", "--network-interfaces", "lo", "--prefix-output"),
            "-hosts localhost:1,127.0.0.1:2 -iface lo -prepend-rank -n 3 {python} {script} 3",
        ),
        (
            INTEL,
            ("-H", "localhost:1,127.0.0.1:2", "--mpirun-args", "-print-rank-map"),
            "-print-rank-map -host localhost -n 1 {python} {script} 3 "
            ": -host 127.0.0.1 -n 2 {python} {script} 3",
        ),
        ("Platform MPI 9.1", ("-np", "2"), "-n 2 {python} {script} 3"),
    ],
)
def test_the_command_that_is_shown_is_the_command_that_runs(
    fake, tmp_path, version, options, expected
) -> None:
    mpirun = str(fake(version))
    words = ("--mpirun", mpirun, *options, "-x", "GIVEN=a b", str(SCRIPT), "3")
    shown = run("--dry-run", *words)
    assert shown.returncode == 0
    *variables, command = shown.stdout.splitlines()
    assert command == f"{mpirun} {expected}".format(python=sys.executable, script=SCRIPT)
    assert "GIVEN='a b'" in variables
    assert not (tmp_path / "words").exists()
    assert "a lost rank ends the job" in shown.stderr
    ran = run("--restarts", "0", *words)
    assert ran.returncode == 0
    assert (tmp_path / "words").read_text().splitlines() == shlex.split(command)
    assert "GIVEN=a b\n" in (tmp_path / "env").read_text()


@pytest.mark.parametrize("version", [OPEN_MPI_4, MPICH, INTEL])
@pytest.mark.parametrize(
    ("option", "value"),
    [("--spares", "1"), ("--respawn", "1"), ("--max-np", "3"), ("--reset-limit", "2"),
     ("--host-discovery-script", "true")],
)  # fmt: skip
def test_what_needs_ulfm_is_refused_by_name_elsewhere(fake, tmp_path, version, option, value) -> None:
    ran = run("--mpirun", str(fake(version)), "-np", "2", option, value, str(SCRIPT))
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"elche-run: {option} must be left out: {tmp_path}/mpirun is ")
    assert "where a lost rank ends the job, got " in ran.stderr
    assert not (tmp_path / "words").exists()


def test_hydra_finds_the_directories_for_its_copies(fake, tmp_path) -> None:
    folder = tmp_path / "out"
    ran = run("--mpirun", str(fake(MPICH)), "-np", "2", "--output-filename", str(folder), str(SCRIPT))
    assert ran.returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == ["rank.0", "rank.1"]
    assert f"{folder}/rank.%r/stdout" in (tmp_path / "words").read_text().splitlines()


def test_in_slurm_the_hosts_are_told_and_nothing_is_started_twice(fake) -> None:
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost", "SLURM_TASKS_PER_NODE": "3"}
    words = ("--dry-run", "--mpirun", str(fake(MPICH)), str(SCRIPT))
    ran = run(*words, **slurm)
    assert "elche-run: hosts of Slurm job 7: localhost:3\n" in ran.stderr
    assert " -hosts localhost:3 -n 3 " in ran.stdout
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "3"}
    ran = run(*words, **slurm, **step)
    assert ran.returncode == 2
    assert ran.stderr.startswith(
        "elche-run: srun has started 3 of these (SLURM_STEP_NUM_TASKS), and each would"
    )


@pytest.mark.usefixtures("ulfm")
def test_what_is_drawn_at_each_start_is_shown_by_its_shape() -> None:
    ran = run("--dry-run", "-np", "1", "--restarts", "1", str(SCRIPT))
    shown = ran.stdout.splitlines()
    assert "ELCHE_GUARD=tcp:TOKEN:PORT:ADDRESS" in shown
    assert "ELCHE_SNAPSHOTS=/dev/shm/elche-TOKEN" in shown
    assert " --with-ft ulfm " in shown[-1]
    assert (ran.returncode, ran.stderr) == (0, "")


def test_an_mpi_is_not_asked_for_before_the_options_are_right(fake, tmp_path) -> None:
    ran = run("--mpirun", str(fake(MPICH)), "-np", "0", str(SCRIPT))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "must be an integer of at least 1, got '0'" in ran.stderr
