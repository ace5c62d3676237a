"""Spares, seats and growth under elche-run: one door for all of them."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from cluster_rig import TRAIN
from waiting import is_alive, until


def test_a_warm_spare_takes_a_lost_slot(launch):
    job = launch("-np", "3", "--spares", "1", faults=[[1, 10, "SIGKILL"]])
    assert job.end() == 0
    job.assert_fired()
    job.assert_lawful()
    assert job.members == {0, 2, 3}
    (joined,) = job.log("joined")
    assert (joined["process"], joined["slot"]) == (3, 1)


def test_a_spare_in_the_slot_of_one_that_hangs_costs_that_one_its_life(launch):
    job = launch("-np", "3", "--spares", "1", "--stall-seconds", "1", pace=0.02, faults=[[1, 5, "SIGSTOP"]])
    hung = job.pid(1)
    until(lambda: not is_alive(hung))
    assert job.launcher.poll() is None
    assert job.end() == 0
    job.assert_lawful()
    assert job.members == {0, 2, 3}
    assert [entry["event"] for entry in job.log() if entry["event"] in ("lost", "slot_dead", "joined")] == [
        "lost",
        "slot_dead",
        "joined",
    ]


@pytest.mark.parametrize(
    "plain", [pytest.param(False, id="state.epochs", marks=pytest.mark.soak), pytest.param(True, id="range")]
)
def test_a_seat_wakes_imports_and_enters_while_the_others_go_on(launch, plain):
    """The script is a module, as `python -m run_train`."""
    job = launch(
        "-np", "2", "--respawn", "1", script=("-m", TRAIN.stem), pace=0.04, faults=[[1, 8, "SIGKILL"]],
        plain=plain, samples=200, epochs=4, env={"PYTHONPATH": str(TRAIN.parent)},
    )  # fmt: skip
    assert job.end() == 0
    job.assert_fired()
    job.assert_lawful(samples=200)
    assert job.members == {0, 2}
    begun, ready = (job.noted(key, 2)[0] for key in ("at", "ready"))
    during = [note for note in job.notes(0) if begun < note.get("at", 0.0) < ready and "window" in note]
    assert len(during) >= 3, job.story()


def test_a_job_grows_by_signal_and_by_command(launch):
    job = launch("-np", "2", "--max-np", "4", epochs=10_000)
    job.wait_for_window(3)
    job.signal(signal.SIGUSR1)
    command = [sys.executable, "-m", "elche.mpi_launch", "grow", "1", "--pid", str(job.launcher.pid)]
    subprocess.run(command, check=True, timeout=30)
    job.signal(signal.SIGUSR1)
    until(lambda: len(job.log("joined")) == 2, seconds=60)
    job.order(0, "finish")
    assert job.end() == 0
    assert job.said == [
        "growing to 3 ranks",
        "growing to 4 ranks",
        "cannot grow to 5 ranks: --max-np is 4",
    ]
    job.assert_lawful(epochs=max((entry["epoch"] + 1 for entry in job.log("epoch")), default=0))
    assert job.members == {0, 1, 2, 3}
    assert sorted(entry["slot"] for entry in job.log("joined")) == [2, 3]
