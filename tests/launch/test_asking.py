"""elche-run asked to stop or to grow, by signals and by its own command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from launch_rig import pids
from waiting import is_alive

RUN = "elche.mpi_launch"

pytestmark = pytest.mark.usefixtures("ulfm")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_asks_all_ranks_to_stop(start, number, code):
    stopped = {"event": "stop", "reason": signal.Signals(number).name, "exit_code": code}
    job = start(RUN, "-np", "2", words=[["hear"], ["tell", stopped], ["exit", 0]])
    pids(job, 2)
    job.process.send_signal(number)
    ended, err = job.end()
    assert ended == code
    assert [job.wait_for("heard", process) for process in (0, 1)] == [[{"stop": True, "exit_code": code}]] * 2
    assert err.splitlines()[-1] == f"elche-run: interrupted; exit code {code}"


def test_a_second_ctrl_c_ends_at_once(start):
    job = start(RUN, "-np", "2", words=[["hang"]])
    ranks = pids(job, 2)
    job.process.send_signal(signal.SIGINT)
    assert job.process.stderr.readline() == "elche-run: SIGINT: all ranks stop after the same window\n"
    assert all(map(is_alive, ranks))
    job.process.send_signal(signal.SIGINT)
    code, err = job.end()
    assert code == 130
    assert "elche-run: interrupted again: killing processes 0, 1\n" in err
    assert not any(map(is_alive, ranks))


def test_a_stop_that_does_not_come_is_forced(start):
    job = start(RUN, "-np", "2", "--kill-seconds", "0.5", words=[["hang"]])
    ranks = pids(job, 2)
    job.process.send_signal(signal.SIGTERM)
    code, err = job.end()
    assert code == 143
    assert "0.5 s after the ranks were asked to stop: killing processes 0, 1" in err
    assert not any(map(is_alive, ranks))


def test_a_signal_counts_where_a_loss_would_end_the_job_too(start, hanging_mpirun):
    job = start(
        RUN, "-np", "2", "--mpirun", hanging_mpirun, "--grace-seconds", "0.1", words=[["hear"], ["exit", 0]]
    )
    pids(job, 2)
    job.process.terminate()
    assert job.end()[0] == 143


def test_growing_is_asked_for_by_signal_and_by_command(start):
    listen = [["hear"], ["note", "grown"], ["hear"], ["note", "more"], ["wait_for", "go"]]
    job = start(RUN, "-np", "1", "--max-np", "3", "--grace-seconds", "0.5", words={"0": listen})
    job.wait_for("pid")
    job.process.send_signal(signal.SIGUSR1)
    job.wait_for("grown")
    command = [sys.executable, "-m", RUN, "grow", "2", "--pid", str(job.process.pid)]
    asked = subprocess.run(command, capture_output=True, text=True, check=True)
    assert asked.stderr == f"elche-run: asked process {job.process.pid} for 2 more\n"
    job.wait_for("more")
    (job.folder / "go").touch()
    _, err = job.end()
    assert [note["heard"] for note in job.notes() if "heard" in note] == [
        [{"grow": 1, "ranks": 2}],
        [{"grow": 1, "ranks": 3}],
    ]
    assert "elche-run: cannot grow to 4 ranks: --max-np is 3\n" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["0", "--pid", "1"], "argument N: must be an integer of at least 1, got '0'"),
        (["1"], "the following arguments are required: --pid"),
        (
            ["1", "--pid", str(os.getpid())],
            f"--pid must be the process of a running elche-run, got {os.getpid()}",
        ),
        (["1", "--pid", "99999999"], "--pid must be the process of a running elche-run, got 99999999"),
    ],
)
def test_growing_nothing_is_refused(words, said):
    command = [sys.executable, "-m", RUN, "grow", *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (2, f"elche-run: {said}\n")
