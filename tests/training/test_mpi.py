"""What only processes can show: errors that reach all of them, loader workers, ends in time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from waiting import is_alive, until

HERE = Path(__file__).parent


def outcomes(folder, n):
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(n)]


@pytest.fixture(scope="module")
def caught_w(mpirun, tmp_path_factory):
    """By rank and case: the classes of the error and its text."""
    folder = tmp_path_factory.mktemp("refusals")
    ended = mpirun(3, HERE / "run_refusals.py", folder, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return outcomes(folder, 3)


WORDS = {
    "layer": ["MismatchError", "2.weight", "2.bias", "rank 1"],
    "shape": ["MismatchError", "0.weight", "[4, 3]", "[5, 3]", "rank 2"],
    "dtype": ["MismatchError", "0.weight", "float64", "rank 0"],
    "optimizer": ["MismatchError", "SGD", "Adam", "rank 1"],
    "batch size": ["MismatchError", "batch_size", "rank 2"],
    "cadence": ["MismatchError", "anchor", "rank 1"],
    "refused": ["ElcheError", "LBFGS"],
    "step twice": ["RankError", "without a batch", "rank 2"],
    "no step": ["RankError", "was not called", "rank 0"],
    "nonfinite": ["NonFiniteError", "0.weight", "rank 2"],
    "weight": ["RankError", "-1.0", "rank 0"],
    "break": ["RankError", "run to its end", "rank 1"],
    "buffer": ["RankError", "0.running_mean", "rank 1"],
    "epoch": ["MismatchError", "epochs [0, 1, 2]"],
}


@pytest.mark.parametrize("case", WORDS)
def test_one_odd_rank_is_an_error_on_all(caught_w, case):
    kind, *words = WORDS[case]
    for caught in caught_w:
        kinds, text = caught[case]
        assert kind in kinds
        assert [word for word in words if word not in text] == []


def test_init_leaves_the_number_of_threads_alone(caught_w):
    for caught in caught_w:
        before, after = caught["threads"]
        assert before == after


def test_workers_load_the_right_samples_and_end(mpirun, tmp_path):
    names = ["fork", "persistent", "spawn"]
    ended = mpirun(2, HERE / "run_workers.py", tmp_path, *names, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    outcome_w = outcomes(tmp_path, 2)
    pids = {pid for outcome in outcome_w for name in names for pid in outcome[name][1]}
    own = {outcome[name][2] for outcome in outcome_w for name in names}
    assert len(own) == 2
    assert not own & pids
    for name in names:
        for epoch in zip(*(outcome[name][0] for outcome in outcome_w), strict=True):
            assert sorted(i for ids in epoch for i in ids) == list(range(61))
    assert [len(outcome["persistent"][1]) for outcome in outcome_w] == [2, 2]
    until(lambda: not any(map(is_alive, pids)), seconds=20)


def test_an_exception_in_a_worker_reaches_the_user_and_ends_the_job(mpirun, tmp_path):
    began = time.monotonic()
    ended = mpirun(2, HERE / "run_workers.py", tmp_path, "broken", timeout=60)
    assert ended.returncode != 0
    assert ended.stderr.count("ValueError: sample 50 is broken") == 1
    assert time.monotonic() - began < 30


def test_a_rank_that_never_comes_ends_the_job_in_time(mpirun):
    began = time.monotonic()
    ended = mpirun(2, HERE / "run_absent.py", timeout=60, env={"ELCHE_STALL_SECONDS": "1"})
    assert ended.returncode == 5
    assert "DeadlineError" in ended.stderr
    assert "within 1 s" in ended.stderr
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("options", [(), ("--with-ft", "ulfm")])
def test_a_forked_child_that_exits_ends_nothing_of_its_parents(mpirun, request, options):
    if options:
        request.getfixturevalue("ulfm")
    ended = mpirun(2, HERE / "run_fork.py", options=options, timeout=40)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert sorted(ended.stdout.split()) == ["child", "child", "trained", "trained"]


@pytest.mark.parametrize(("end", "code"), [("term", 143), ("raise", 1)])
def test_the_last_ranks_exit_code_is_the_jobs(mpirun, ulfm, end, code):
    ended = mpirun(2, HERE / "run_last.py", end, options=("--with-ft", "ulfm"), timeout=40)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert ended.stderr.count("ValueError: the last one") == (end == "raise")
