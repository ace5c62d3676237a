"""elche-run with real ranks under the real mpirun: ends, signals, what hangs, what starts again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launch_rig import pids
from waiting import is_alive, until

RUN = "elche.mpi_launch"
LOST = {
    "event": "lost",
    "process": 1,
    "slot": 1,
    "cause": "died",
    "epoch": 0,
    "window": 5,
    "heal_ms": 9,
    "batches": 2,
}
FINISHED = {"event": "stop", "reason": "finished", "exit_code": 0}

pytestmark = pytest.mark.usefixtures("ulfm")


@pytest.mark.parametrize(
    ("options", "words", "code", "said"),
    [
        ((), [["exit", 0]], 0, []),
        ((), [["exit", 3]], 1, ["lost rank 0: died (exit code 3)", "lost rank 1: died (exit code 3)",
                                "failed; exit code 1"]),
        ((), {"1": [["exit", 3]], "*": []}, 0, ["lost rank 1: died (exit code 3)",
                                                "finished, with losses; exit code 0"]),
        (("--strict",), {"1": [["kill", 9]], "*": []}, 3, ["lost rank 1: died (killed by signal 9)",
                                                           "finished, with losses (--strict); exit code 3"]),
        ((), [["tell", {"event": "stop", "reason": "below min_ranks", "exit_code": 4}], ["exit", 4]], 4,
         ["fewer ranks are left than --min-np; exit code 4"]),
        ((), [["tell", {"event": "stop", "reason": "stalled", "exit_code": 5}], ["exit", 5]], 5,
         ["lost rank 0: died (exit code 5)", "lost rank 1: died (exit code 5)", "stalled; exit code 5"]),
    ],
)  # fmt: skip
def test_the_exit_code_and_the_last_lines(start, options, words, code, said):
    job = start(RUN, "-np", "2", *options, words=words)
    ended, err = job.end()
    assert (ended, [line for line in err.splitlines() if line.startswith("elche-run")]) == (
        code,
        [f"elche-run: {line}" for line in said],
    )


def test_a_loss_is_told_as_the_survivors_tell_it(start):
    words = {
        "1": [["wait_for", "go"], ["kill", 9]],
        "*": [["tell", LOST], ["note", "told"], ["tell", FINISHED]],
    }
    job = start(RUN, "-np", "3", words=words)
    for process in (0, 2):
        job.wait_for("told", process)
    (job.folder / "go").touch()
    code, err = job.end()
    assert code == 0
    assert err.count("lost rank 1") == 1
    assert (
        "elche-run: lost rank 1 (slot 1) in epoch 0, window 5: died (killed by signal 9); "
        "2 batches dealt again, healed in 9 ms\n"
    ) in err


def test_more_losses_than_allowed_end_the_job(start):
    words = {"0": [["kill", 9]], "2": [["wait_for", "go"], ["exit", 1]], "*": [["hang"]]}
    job = start(RUN, "-np", "4", "--max-failures", "25%", "--kill-seconds", "0.5", words=words)
    ranks = pids(job, 4)
    until(lambda: not is_alive(ranks[0]))
    assert is_alive(ranks[1])
    (job.folder / "go").touch()
    code, err = job.end()
    assert code == 1
    assert "elche-run: 2 of 4 ranks lost, --max-failures allows 1: all ranks stop after the same" in err
    assert "elche-run: 0.5 s after the ranks were asked to stop: killing processes 1, 3\n" in err
    assert not any(map(is_alive, ranks))


def test_one_that_hangs_after_the_end_is_killed(start):
    words = {"0": [["tell", FINISHED], ["exit", 0]], "1": [["tell", FINISHED], ["hang"]], "2": [["kill", 19]]}
    job = start(RUN, "-np", "3", "--grace-seconds", "0.5", words=words)
    ranks = pids(job, 3)
    code, err = job.end()
    assert code == 0
    assert "elche-run: 0.5 s after the end: killing processes 1, 2\n" in err
    assert not any(map(is_alive, ranks))


def test_a_job_of_which_only_stopped_ranks_are_left_is_stalled(start):
    words = {"0": [["wait_for", "go"], ["raise"]], "1": [["note", "ready"], ["kill", 19]]}
    job = start(RUN, "-np", "2", "--kill-seconds", "0.5", words=words)
    ranks = pids(job, 2)
    job.wait_for("ready", 1)
    (job.folder / "go").touch()
    code, err = job.end()
    assert code == 5
    assert "elche-run: 0.5 s with none but stopped ranks: killing processes 1\n" in err
    assert err.endswith("elche-run: lost rank 0: died (exit code 1)\nelche-run: stalled; exit code 5\n")
    assert not any(map(is_alive, ranks))


def test_a_rank_that_dies_before_init_ends_the_job(start):
    job = start(RUN, "-np", "2", "--grace-seconds", "0.5", words=[["deaf"]])
    ranks = pids(job, 2)
    os.kill(ranks[0], signal.SIGKILL)
    code, err = job.end()
    assert code == 1
    why = "a process failed before elche.init(), the others wait in it: killing processes 1"
    assert f"elche-run: {why}\n" in err
    assert "elche-run: lost rank 0: died (killed by signal 9)\n" in err
    assert not any(map(is_alive, ranks))


def test_one_that_is_busy_after_the_end_is_waited_for(start):
    words = {"0": [["tell", FINISHED]], "1": [["wait_for", "go"], ["note", "late"]]}
    job = start(RUN, "-np", "2", "--grace-seconds", "0.1", words=words)
    ranks = pids(job, 2)
    until(lambda: not is_alive(ranks[0]))
    with pytest.raises(subprocess.TimeoutExpired):
        job.process.wait(1.0)
    (job.folder / "go").touch()
    assert job.end()[0] == 0
    assert job.wait_for("late", 1)


def test_a_hung_mpirun_is_ended(start, hanging_mpirun):
    job = start(RUN, "-np", "2", "--mpirun", hanging_mpirun, "--grace-seconds", "0.5", words=[["exit", 0]])
    code, err = job.end()
    assert f"{hanging_mpirun} is Open MPI 4, without ULFM: a lost rank ends the job" in err
    assert "elche-run: 0.5 s after the end: killing mpirun\n" in err
    assert code == 0


def test_nothing_outlives_the_launcher(start):
    job = start(RUN, "-np", "2", words=[["hang"]])
    ranks = pids(job, 2)
    parents = [job.wait_for("parent", process) for process in (0, 1)]
    job.process.kill()
    until(lambda: not any(map(is_alive, ranks + parents)))


def test_a_slot_that_was_filled_costs_its_hanging_process_its_life(start):
    words = {"0": [["wait_for", "go"], ["tell", {"event": "evict", "process": 1}]], "1": [["hang"]]}
    job = start(RUN, "-np", "2", words=words)
    ranks = pids(job, 2)
    (job.folder / "go").touch()
    assert job.end()[0] == 0
    assert not is_alive(ranks[1])


def test_a_silent_rank_is_killed_when_its_time_is_up(start):
    silent = {**LOST, "cause": "silent"}
    words = {
        "0": [["wait_for", "go"], ["tell", silent]],
        "1": [["tell", {"beat": True, "in_batch": True}], ["note", "beating"], ["hang"]],
    }
    job = start(RUN, "-np", "2", "--kill-seconds", "0.5", words=words)
    job.wait_for("beating", 1)
    (job.folder / "go").touch()
    code, err = job.end()
    assert code == 0
    assert "rank 1 was set aside and has hung for 0.5 s: killed" in err
    assert "elche-run: lost rank 1 (slot 1) in epoch 0, window 5: silent; 2 batches" in err


def test_a_job_that_died_whole_starts_again(start):
    job = start(RUN, "-np", "2", "--restarts", "1", words=[["hang_at_first"], ["exit", 0]])
    ranks = pids(job, 2)
    mpirun = int(Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children").read_text())
    os.kill(mpirun, signal.SIGKILL)
    code, err = job.end()
    assert code == 0
    assert not any(map(is_alive, ranks))
    for process in (0, 1):
        assert [note["resume"] for note in job.notes(process) if "resume" in note] == [False, True]
    assert "elche-run: the job died as a whole (mpirun ended with -9)\n" in err
    assert "elche-run: starting again with 2 ranks; restarts left: 0\n" in err


def test_a_failure_of_the_script_is_not_tried_again(start):
    job = start(RUN, "-np", "2", "--restarts", "1", words=[["raise"]])
    code, err = job.end()
    assert code == 1
    assert "starting again" not in err
    assert err.count("ValueError: told to") == 2


def test_an_mpirun_that_cannot_start_says_so(start):
    job = start(RUN, "-np", "2", "--mpirun-args=--no-such-option", words=[])
    code, err = job.end()
    assert code == 1
    assert "before any rank was started" in err
    assert job.notes() == []


def test_mpis_own_files_are_in_a_directory_of_the_jobs_own_which_goes_with_it(ulfm, tmp_path):
    script = tmp_path / "where.py"
    name = "OMPI_MCA_btl_sm_backing_directory"
    script.write_text(f"import os; print(*os.listdir(where := os.environ['{name}']), where)")
    command = [sys.executable, "-m", RUN, "-np", "1", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    *there, where = ended.stdout.split()
    assert there
    assert not Path(where).exists()


def test_wrong_settings_are_refused_before_anything_starts(start):
    code, err = start(RUN, "-np", "0", words=[]).end()
    assert (code, err) == (
        2,
        "elche-run: argument -np/-n/--np/--num-proc: must be an integer of at least 1, got '0'\n",
    )
    job = start(RUN, "-np", "1", words=[], env={"ELCHE_MIN_RANKS": "0"})
    code, err = job.end()
    assert (code, err) == (2, "elche-run: ELCHE_MIN_RANKS must be an integer of at least 1, got '0'\n")
    assert job.notes() == []
