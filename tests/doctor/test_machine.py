"""What the system tells: quotas of both kinds of control groups, folders, interfaces, leftovers."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest
from waiting import until

from elche.mpi_launch.doctor import machine


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "250000 100000\n"}, 2.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "what is this\n"}, None),
        ({}, None),
    ],
)
def test_a_containers_share_of_the_processors(tmp_path, files, quota):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.read_quota(tmp_path) == quota


def test_processors_are_those_of_this_process():
    found = machine.processors()
    assert (found["allowed"], found["cpus"]) == (len(os.sched_getaffinity(0)), os.cpu_count())
    assert 1 <= found["cores"] <= found["allowed"]


def test_a_folder_and_none(tmp_path):
    found = machine.storage(tmp_path)
    assert (found["path"], found["is_writable"]) == (str(tmp_path), True)
    assert 0 < found["free_bytes"] <= found["total_bytes"]
    assert machine.storage(tmp_path / "none") == {"path": str(tmp_path / "none")}


def test_the_loopback_is_among_the_interfaces_and_answers():
    assert {"name": "lo", "address": "127.0.0.1", "is_up": True} in machine.interfaces()
    assert machine.loopback_answers()


def test_a_loopback_that_refuses(monkeypatch):
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert not machine.loopback_answers()


def test_mpis_directories_of_processes_that_are_gone(tmp_path):
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    for name in (f"ompi.{os.getpid()}", f"ompi.{gone.pid}", f"prted.{gone.pid}", "ompi.conf", "other.1"):
        (tmp_path / name).mkdir()
    assert machine.stale_mpi(tmp_path) == [f"{tmp_path}/ompi.{gone.pid}", f"{tmp_path}/prted.{gone.pid}"]
    assert machine.stale_mpi(tmp_path / "none") == []


def test_elches_directories_that_no_process_names(tmp_path):
    for name in ("elche-mpi-used", "elche-mpi-left", "elche-0123abcd", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "elche-file").touch()
    env = {**os.environ, "PRTE_MCA_prte_tmpdir_base": f"{tmp_path}/elche-mpi-used"}
    stale = [f"{tmp_path}/elche-0123abcd", f"{tmp_path}/elche-mpi-left"]
    with subprocess.Popen(["cat"], env=env, stdin=subprocess.PIPE):
        until(lambda: machine.stale_elche(tmp_path) == stale)  # its environment shows a moment after it began


@pytest.mark.parametrize(
    ("shell", "is_allowed"),
    [
        ({}, False),
        ({"OMPI_ALLOW_RUN_AS_ROOT": "1"}, False),
        ({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "A": "2"}, True),
    ],
)
def test_root_is_allowed_by_both_variables(shell, is_allowed):
    assert machine.as_root(shell) == {"is_root": os.geteuid() == 0, "is_allowed": is_allowed}
