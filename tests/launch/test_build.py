"""--check-build: what is found, without importing any of it."""

from __future__ import annotations

from elche.mpi_launch.build import check_build, describe_build, installed
from elche.mpi_launch.command import Mpi

FULL = """\
elche 0.1:

Available frameworks:
    [X] PyTorch 2.9

Available launchers:
    [X] Open MPI with ULFM 5.0.11 (/bin/mpirun)
    [X] ranks may be lost, replaced and added

Available operations:
    [X] MPI, through mpi4py 4.1
    [X] NCCL, through cupy-cuda12x 13.6
    [X] kernels of Triton 3.5"""
BARE = """\
elche 0.1:

Available frameworks:
    [ ] PyTorch

Available launchers:
    [X] MPICH 4.2 (/bin/mpirun)
    [ ] ranks may be lost, replaced and added

Available operations:
    [ ] MPI, through mpi4py
    [ ] NCCL, through cupy
    [ ] kernels of Triton"""


def test_what_is_there_is_ticked() -> None:
    packages = {
        "elche": "0.1", "torch": "2.9", "mpi4py": "4.1", "triton": "3.5", "cupy-cuda12x": "13.6",
    }  # fmt: skip
    assert describe_build(packages, Mpi.ULFM, "5.0.11", "/bin/mpirun") == FULL
    assert describe_build({"elche": "0.1"}, Mpi.MPICH, "4.2", "/bin/mpirun") == BARE


def test_no_mpi_is_no_reason_to_fail(tmp_path) -> None:
    shown = check_build(["--check-build", "--mpirun", str(tmp_path / "none")])
    assert shown is not None
    assert f"[ ] an MPI that elche does not know (--mpirun must be a program, got '{tmp_path}/none')" in shown


def test_it_is_asked_for_by_horovods_names_only() -> None:
    assert check_build(["-cb"]) is not None
    assert check_build(["-np", "2", "train.py", "--check-build"]) is None


def test_torch_is_found() -> None:
    assert {"elche", "torch", "mpi4py"} <= installed().keys()
