"""A host is lost, or its daemon, or its link, or the job as a whole: nobody's hand is needed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_rig import Job
from hosts_rig import Hosts, name_of
from waiting import until

OFTEN = {"ELCHE_SNAPSHOT_SECONDS": "0.1"}


@pytest.fixture
def on_hosts(launch, hosts) -> Callable[[int], tuple[Job, Hosts]]:
    """`on_hosts(n)`: a job of one rank on each of n hosts, in the midst of its training, and the hosts."""

    def begin(num_hosts: int) -> tuple[Job, Hosts]:
        net = hosts(num_hosts)
        options = [*net.options(1), "--stall-seconds", "2", "--grace-seconds", "1"]
        job = launch(*options, prefix=net.prefix, env=OFTEN, pace=0.02)
        job.wait_for_window(5)
        until(lambda: all(map(net.memory, net.names)))
        return job, net

    return begin


def assert_resumed(job: Job, ranks: int) -> None:
    """The job went on once, on so many ranks, from a window that was committed and not the first."""
    assert f"starting again with {ranks} ranks" in job.err
    assert [entry["world"] for entry in job.log("run")][1:] == [ranks]
    (resumed,) = job.log("resume")
    assert resumed["window"] > 0
    job.assert_lawful()


def test_all_ranks_of_a_remote_host_killed(on_hosts):
    job, net = on_hosts(2)
    net.kill("eh2", "python")
    assert job.end() == 0
    assert [entry["process"] for entry in job.log("lost")] == [1]
    assert "starting again" not in job.err
    job.assert_lawful()
    assert net.memory("eh1") == net.memory("eh2") == []


def test_a_remote_daemon_killed(on_hosts):
    """The host answers, so it is taken again."""
    job, net = on_hosts(2)
    net.kill("eh2", "prted")
    assert job.end(90.0) == 0
    assert "starting again with 2 ranks on eh1:1,eh2:1; restarts left: 2\n" in job.err
    assert_resumed(job, 2)
    assert net.memory("eh1") == net.memory("eh2") == []


@pytest.mark.parametrize("num_hosts", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_a_host_without_power(on_hosts, num_hosts):
    job, net = on_hosts(num_hosts)
    net.shut_down(net.names[-1])
    assert job.end(90.0) == 0
    assert_resumed(job, num_hosts - 1)


@pytest.mark.parametrize("num_hosts", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_a_link_cut(on_hosts, num_hosts):
    """The ranks behind it are set aside; on their own they can decide nothing, and their guards end them."""
    job, net = on_hosts(num_hosts)
    lost = net.names[-1]
    net.cut(lost)
    assert job.launcher.wait(90.0) == 0
    assert [(entry["process"], entry["cause"]) for entry in job.log("lost")] == [(num_hosts - 1, "silent")]
    job.assert_lawful()
    until(lambda: not any(name_of(pid).startswith("python") for pid in net.processes(lost)), 60.0)


@pytest.mark.parametrize(
    "plain", [pytest.param(False, id="state.epochs", marks=pytest.mark.soak), pytest.param(True, id="range")]
)
def test_a_job_that_died_whole(launch, plain):
    job = launch("-np", "2", "--restarts", "1", "--strict", env=OFTEN, pace=0.02, plain=plain)
    job.wait_for_window(20)
    mpirun = Path(f"/proc/{job.launcher.pid}/task/{job.launcher.pid}/children").read_text().split()[0]
    os.kill(int(mpirun), signal.SIGKILL)
    assert job.end(90.0) == 3
    assert "the job died as a whole (mpirun ended with -9)\n" in job.err
    assert_resumed(job, 2)
