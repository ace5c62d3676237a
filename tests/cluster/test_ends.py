"""How ranks end under elche-run, and how the job does: exit codes, last lines, checkpoints."""

from __future__ import annotations

import os
import signal
import time

import pytest
from cluster_rig import Job
from waiting import until

from elche.elastic.checkpoint import newest, read

CHECKPOINTS = "checkpoints"


@pytest.fixture
def saving(tmp_path):
    """The environment of a job that writes checkpoints, and the directory."""
    directory = tmp_path / CHECKPOINTS
    return {"ELCHE_CHECKPOINT": str(directory)}, directory


def windows_in(directory) -> list[int]:
    """The windows of the checkpoints in a directory; each is whole."""
    assert newest(directory) is not None
    return sorted(read(path)["job"]["window"] for path in directory.iterdir())


@pytest.mark.parametrize(("kind", "how"), [("exit5", "exit code 5"), ("_exit3", "exit code 3")])
def test_a_rank_that_ends_with_an_exit_code_is_lost(launch, kind, how):
    job = launch("-np", "2", "--strict", faults=[[1, 10, kind]])
    assert job.end() == 3
    job.assert_fired()
    assert job.said == [
        job.lost_line(1, f"died ({how})"),
        "finished, with losses (--strict); exit code 3",
    ]
    job.assert_lawful()
    assert job.members == {0}


def test_below_min_np_the_job_ends_with_a_checkpoint(launch, saving):
    env, directory = saving
    job = launch("-np", "4", "--min-np", "4", env=env, faults=[[2, 10, "SIGKILL"]])
    assert job.end() == 4
    job.assert_fired()
    _, window = job.fired(2)
    assert job.said == [
        job.lost_line(2, "died (killed by signal 9)"),
        "fewer ranks are left than --min-np; exit code 4",
    ]
    assert windows_in(directory) == [window + 1]
    assert f"all ranks stop after {window + 1} windows: 3 ranks are left, at least 4 shall be\n" in job.err


def test_more_losses_than_a_share_of_the_ranks_end_the_job_with_a_checkpoint(launch, saving):
    env, directory = saving
    job = launch("-np", "4", "--max-failures", "25%", env=env, faults=[[2, 5, "SIGKILL"], [0, 10, "SIGKILL"]])
    assert job.end() == 1
    job.assert_fired()
    assert job.said[-1] == "failed; exit code 1"
    assert [line for line in job.said if "lost rank" in line] == [
        job.lost_line(process, "died (killed by signal 9)") for process in (2, 0)
    ]
    assert len(windows_in(directory)) == 1


def test_sigterm_to_the_launcher_stops_all_after_the_same_window(launch, saving):
    env, directory = saving
    job = launch("-np", "3", "--spares", "1", env=env)
    job.wait_for_window(5)
    job.signal(signal.SIGTERM)
    assert job.end() == 143
    assert job.said == ["SIGTERM: all ranks stop after the same window", "interrupted; exit code 143"]
    assert_all_stopped_together(job, directory, 3)


def test_sigterm_to_every_rank_stops_all_after_the_same_window(launch, saving):
    env, directory = saving
    job = launch("-np", "3", "--spares", "1", env=env)
    job.wait_for_window(5)
    for process in range(3):
        os.kill(job.pid(process), signal.SIGTERM)
    assert job.end() == 143
    assert job.said == ["interrupted; exit code 143"]
    assert_all_stopped_together(job, directory, 3)


def assert_all_stopped_together(job: Job, directory, ranks: int) -> None:
    last = [job.noted("window", process)[-1] for process in range(ranks)]
    assert windows_in(directory) == [len(job.committed())] == [max(last) + 1]
    assert "Traceback" not in job.err
    job.assert_lawful(epochs=0)


def test_ctrl_c_stops_all_and_a_second_one_ends_at_once(launch):
    job = launch("-np", "2")
    job.wait_for_window(5)
    os.kill(job.pid(1), signal.SIGSTOP)
    job.signal(signal.SIGINT)
    until(lambda: "SIGINT: all ranks stop after the same window" in job.err)
    asked = time.monotonic()
    job.signal(signal.SIGINT)
    assert job.end() == 130
    assert time.monotonic() - asked < 5.0
    assert job.said[1:] == [
        "interrupted again: killing processes 0, 1",
        "interrupted; exit code 130",
    ]


def test_one_ctrl_c_waits_for_the_window(launch, saving):
    env, directory = saving
    job = launch("-np", "2", env=env)
    job.wait_for_window(5)
    job.signal(signal.SIGINT)
    assert job.end() == 130
    assert_all_stopped_together(job, directory, 2)


def test_sigterm_to_one_rank_lets_it_leave(launch, saving):
    env, directory = saving
    job = launch("-np", "3", "--strict", env=env, faults=[[1, 5, "SIGTERM"]])
    assert job.end() == 0
    job.assert_fired()
    (told, last) = job.said
    assert told.startswith("lost rank 1 (slot 1) in epoch ")
    assert told.endswith(": left; COST")
    assert last == "finished, with losses; exit code 0"
    job.assert_lawful()
    assert job.members == {0, 2}
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("process", [0, 1])
def test_the_launcher_knows_of_a_rank_that_came_back(launch, process):
    """Rank 0 too: when it is back it is the lowest rank, and the one that does not know of itself."""
    job = launch("-np", "3", "--stall-seconds", "1", epochs=10_000)
    job.wait_for_window(20)
    job.order(process, "SIGSTOP")  # in a batch: between two of them the script has 600 s
    until(lambda: job.log("lost"))
    os.kill(job.pid(process), signal.SIGCONT)
    until(lambda: job.log("joined"))
    job.order(process, "finish")
    assert job.end() == 0
    (line, _) = job.said
    assert line.startswith(f"lost rank {process} (slot {process}) in epoch ")
    assert line.endswith(": silent; COST; came back")
    assert job.members == {0, 1, 2}


def test_a_rank_that_hangs_for_ever_does_not_hold_up_the_end(launch):
    job = launch("-np", "3", "--stall-seconds", "1", "--grace-seconds", "1", faults=[[0, 10, "SIGSTOP"]])
    assert job.end() == 0
    job.assert_fired()
    assert job.said == [
        "1 s after the end: killing processes 0",
        job.lost_line(0, "silent"),
        "finished, with losses; exit code 0",
    ]
    job.assert_lawful()
    assert job.members == {1, 2}


def test_a_rank_that_hangs_for_ever_is_killed_by_its_guard(launch):
    job = launch(
        "-np", "3", "--stall-seconds", "1", "--kill-seconds", "2", pace=0.02, faults=[[1, 5, "loop"]]
    )
    assert job.end() == 0
    job.assert_fired()
    assert job.said == [
        "rank 1 was set aside and has hung for 2 s: killed",
        job.lost_line(1, "silent"),
        "finished, with losses; exit code 0",
    ]
    job.assert_lawful()


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["SIGKILL", "exception", "exit5", "_exit3", "SIGTERM", "SIGSTOP", "loop"])
def test_twenty_runs_in_a_row(launch, kind):
    """Nothing has to be killed at the end, mpirun neither, but what hangs on purpose."""
    hangs = kind in ("SIGSTOP", "loop")
    for run in range(20):
        who = run % 4
        # In the midst of an epoch, whose first batch has a minute.
        job = launch("-np", "4", "--stall-seconds", "1", "--grace-seconds", "3", faults=[[who, 5, kind]])
        assert job.end() == 0, job.story()
        job.assert_fired()
        assert [line for line in job.said if "killing" in line] == (
            [f"3 s after the end: killing processes {who}"] if hangs else []
        )
        job.assert_lawful()
        assert len(job.log("lost")) == 1
