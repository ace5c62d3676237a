"""Horovod's elastic scenarios, each by its name, ranks where it has hosts; and hivemind's faults."""

from __future__ import annotations

import os
import signal

import pytest
from waiting import until


@pytest.mark.parametrize(("kind", "how"), [("SIGKILL", "killed by signal 9"), ("exception", "exit code 1")])
def test_single_rank_failure(launch, kind, how):
    job = launch("-np", "3", faults=[[0, 10, kind]])
    assert job.end() == 0
    job.assert_fired()
    assert job.said == [
        job.lost_line(0, f"died ({how})"),
        "finished, with losses; exit code 0",
    ]
    assert job.err.count("ValueError: told to") == (kind == "exception")
    job.assert_lawful()
    assert job.members == {1, 2}


def test_all_ranks_failure(launch):
    job = launch("-np", "2", faults=[[process, 10, "exception"] for process in range(2)])
    assert job.end() == 1
    assert job.said[-1] == "failed; exit code 1"
    assert all(line.endswith("died (exit code 1)") or "COST" in line for line in job.said[:-1])
    assert job.err.count("ValueError: told to") == 2


def test_fault_tolerance_without_scaling(launch):
    """A replacement keeps the number of ranks what it was."""
    job = launch("-np", "3", "--spares", "2", faults=[[1, 6, "exception"], [2, 12, "SIGKILL"]])
    assert job.end() == 0
    job.assert_fired()
    job.assert_lawful()
    assert len(job.members) == 3
    assert all(entry["slots"] == [0, 1, 2] for entry in job.log("window"))


def test_hosts_added_and_removed(launch):
    job = launch("-np", "2", "--max-np", "3", pace=0.03)
    job.wait_for_window(3)
    job.signal(signal.SIGUSR1)
    until(lambda: job.noted("window", 2))
    os.kill(job.pid(0), signal.SIGTERM)
    assert job.end() == 0
    job.assert_lawful()
    assert job.members == {1, 2}
    assert [entry["cause"] for entry in job.log("lost")] == ["left"]


def test_min_ranks_timeout(launch):
    """Nobody can come, so nobody is waited for."""
    job = launch("-np", "2", "--min-np", "2", faults=[[1, 10, "SIGKILL"]])
    assert job.end() == 4
    assert job.said[-1] == "fewer ranks are left than --min-np; exit code 4"


@pytest.mark.soak
def test_min_ranks_timeout_with_a_spare_that_does_not_come(launch):
    job = launch("-np", "2", "--spares", "1", "--min-np", "2", pace=0.1, epochs=20)
    job.wait_for_window(3)
    os.kill(job.pid(2), signal.SIGSTOP)
    os.kill(job.pid(1), signal.SIGKILL)
    assert job.end(120.0) == 4
    assert job.said[-1] == "fewer ranks are left than --min-np; exit code 4"


def test_reset_limit(launch):
    job = launch("-np", "3", "--max-failures", "1", faults=[[2, 6, "SIGKILL"], [0, 12, "exception"]])
    assert job.end() == 1
    job.assert_fired()
    assert job.said[-1] == "failed; exit code 1"
    assert job.ended() == []


@pytest.mark.parametrize(
    ("fault0", "fault1"),
    [
        (None, "SIGKILL"),
        pytest.param("SIGKILL", "SIGKILL", marks=pytest.mark.soak),
        ("slow_sending", "fail_sending"),
        pytest.param("fail_sending", "SIGKILL", marks=pytest.mark.soak),
        pytest.param("slow_reducing", "fail_sending", marks=pytest.mark.soak),
        ("fail_reducing", "fail_reducing"),
        (None, "cancel"),
        ("fail_sending", "fail_adding"),
    ],
    ids=lambda kind: {"SIGKILL": "fail_before", None: "none"}.get(kind, kind),
)
def test_hivemind_fault_pairs(launch, fault0, fault1):
    """A rank fails before it sends, or while some of the others have its word, or its sum; or is slow."""
    kinds = [(process, kind) for process, kind in enumerate((fault0, fault1)) if kind is not None]
    backend = "auto" if fault1 == "fail_adding" else "mpi"  # in shared memory nothing is sent for a sum
    faults = [[process, 10, kind] for process, kind in kinds]
    job = launch("-np", "3", faults=faults, env={"ELCHE_BACKEND": backend})
    assert job.end() == 0
    job.assert_fired()
    for process, kind in kinds:
        assert bool(job.noted("within", process)) == (kind != "SIGKILL")
    job.assert_lawful()
    assert job.members == {0, 1, 2} - {p for p, kind in kinds if not kind.startswith("slow")}


def test_a_rank_ten_times_slower_is_not_set_aside(launch):
    job = launch("-np", "3", "--stall-seconds", "2", faults=[[1, 5, "slow"]], pace=0.01)
    assert job.end() == 0
    job.assert_fired()
    assert job.said == []
    job.assert_lawful()
    assert job.members == {0, 1, 2}
