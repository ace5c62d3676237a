"""What the shell says is understood, or refused with its name, its value and the bound."""

from __future__ import annotations

import dataclasses

import pytest

from elche.config import Environment, read_environment, variables
from elche.environment import KNOWN
from elche.errors import ConfigError

SILENT_SHELL = {
    "log": None,
    "backend": "auto",
    "stall_seconds": None,
    "checkpoint": None,
    "spares": 0,
    "seats": 0,
    "min_ranks": 1,
    "max_ranks": None,
    "max_failures": None,
    "resume": False,
    "snapshots": None,
    "snapshot_seconds": 5.0,
    "guard": None,
    "fault_tolerant": False,
    "under_mpi": False,
    "under_torchrun": False,
    "under_srun": False,
    "num_started": None,
}
LOUD_SHELL = {
    "ELCHE_LOG": "run-{rank}.jsonl",
    "ELCHE_BACKEND": "memory",
    "ELCHE_STALL_SECONDS": "2.5",
    "ELCHE_CHECKPOINT": "here/there",
    "ELCHE_SPARES": "1",
    "ELCHE_RESPAWN": "2",
    "ELCHE_MIN_RANKS": "3",
    "ELCHE_MAX_RANKS": "4",
    "ELCHE_MAX_FAILURES": "25%",
    "ELCHE_RESUME": "1",
    "ELCHE_SNAPSHOTS": "/dev/shm/elche-1",
    "ELCHE_SNAPSHOT_SECONDS": "0.5",
    "ELCHE_GUARD": "fd:7",
    "OMPI_MCA_mpi_ft_enable": "1",
}


def test_an_empty_shell_gives_the_defaults() -> None:
    assert dataclasses.asdict(read_environment({})) == SILENT_SHELL
    assert read_environment({**dict.fromkeys(KNOWN, ""), "PATH": "/bin"}) == read_environment({})


def test_the_shell_is_read() -> None:
    assert set(LOUD_SHELL) == {*KNOWN, "OMPI_MCA_mpi_ft_enable"}
    assert read_environment(LOUD_SHELL) == Environment(
        log="run-{rank}.jsonl",
        backend="memory",
        stall_seconds=2.5,
        checkpoint="here/there",
        spares=1,
        seats=2,
        min_ranks=3,
        max_ranks=4,
        max_failures="25%",
        resume=True,
        snapshots="/dev/shm/elche-1",
        snapshot_seconds=0.5,
        guard="fd:7",
        fault_tolerant=True,
    )


@pytest.mark.parametrize(
    ("said", "meant"), [("1", True), ("true", True), ("YES", True), ("0", False), ("", False)]
)
def test_open_mpi_tells_whether_the_job_outlives_a_loss(said: str, meant: bool) -> None:
    assert read_environment({"OMPI_MCA_mpi_ft_enable": said}).fault_tolerant is meant


def test_without_an_argument_it_is_this_process_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELCHE_LOG", "here.jsonl")
    assert read_environment().log == "here.jsonl"
    monkeypatch.setenv("ELCHE_LOGS", "there.jsonl")
    with pytest.raises(ConfigError, match="ELCHE_LOGS"):
        read_environment()


def test_a_process_that_starts_others_gets_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELCHE_LOG", "here.jsonl")
    copied = variables()
    assert copied["ELCHE_LOG"] == "here.jsonl"
    copied["ELCHE_LOG"] = "there.jsonl"
    assert read_environment().log == "here.jsonl"


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"])
def test_a_launcher_is_noticed(variable: str) -> None:
    assert read_environment({variable: "0"}).under_mpi


def test_an_unknown_variable_is_refused_and_the_known_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        read_environment({"ELCHE_LOGG": "x"})
    assert str(caught.value) == (
        "ELCHE_LOGG is not a setting of elche; known are ELCHE_BACKEND, ELCHE_CHECKPOINT, ELCHE_GUARD, "
        "ELCHE_LOG, ELCHE_MAX_FAILURES, ELCHE_MAX_RANKS, ELCHE_MIN_RANKS, ELCHE_RESPAWN, ELCHE_RESUME, "
        "ELCHE_SNAPSHOTS, ELCHE_SNAPSHOT_SECONDS, ELCHE_SPARES, ELCHE_STALL_SECONDS"
    )


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("ELCHE_BACKEND", "gloo", "one of auto, mpi, memory"),
        ("ELCHE_STALL_SECONDS", "0", "a number of seconds above 0"),
        ("ELCHE_STALL_SECONDS", "-1", "a number of seconds above 0"),
        ("ELCHE_STALL_SECONDS", "nan", "a number of seconds above 0"),
        ("ELCHE_STALL_SECONDS", "inf", "a number of seconds above 0"),
        ("ELCHE_STALL_SECONDS", "ten", "a number of seconds above 0"),
        ("ELCHE_SPARES", "-1", "an integer of at least 0"),
        ("ELCHE_RESPAWN", "1.0", "an integer of at least 0"),
        ("ELCHE_MIN_RANKS", "0", "an integer of at least 1"),
        ("ELCHE_MAX_RANKS", "many", "an integer of at least 1"),
        ("ELCHE_MAX_FAILURES", "-1", "an integer of at least 0, or a percentage from 0% to 100%"),
        ("ELCHE_MAX_FAILURES", "101%", "an integer of at least 0, or a percentage from 0% to 100%"),
        ("ELCHE_MAX_FAILURES", "%", "an integer of at least 0, or a percentage from 0% to 100%"),
        ("ELCHE_RESUME", "yes", "0 or 1"),
    ],
)
def test_a_wrong_variable_is_named_with_its_bound(name: str, value: str, bound: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_environment({name: value})
    assert str(caught.value) == f"{name} must be {bound}, got {value!r}"


STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize(
    ("shell", "num_started", "under_mpi", "under_srun"),
    [
        (STEP, 4, False, True),
        ({**STEP, "PMIX_RANK": "3"}, 4, True, False),
        ({**STEP, "PMI_RANK": "3", "PMI_SIZE": "4"}, 4, True, False),
        ({**STEP, "OMPI_COMM_WORLD_SIZE": "2"}, 2, True, False),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, 1, False, False),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None, False, False),  # the batch script itself
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}, None, False, False),
        ({"PMI_SIZE": "many"}, None, True, False),
    ],
)
def test_srun_is_known_and_what_a_launcher_has_started(
    shell: dict[str, str], num_started: int | None, under_mpi: bool, under_srun: bool
) -> None:
    found = read_environment(shell)
    assert (found.num_started, found.under_mpi, found.under_srun) == (num_started, under_mpi, under_srun)
