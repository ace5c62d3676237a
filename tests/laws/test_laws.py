"""Laws 1, 2, 3, 4 and 6 of DESIGN section 6: every scenario, in memory and under mpirun, at 1 to 4 ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trials.laws import LAWS, laws_of, resynced
from trials.scenarios import PERTURBED, SCENARIOS
from trials.starting import in_memory

CASES = [(name, law) for name, scenario in SCENARIOS.items() for law in laws_of(scenario)]


@pytest.fixture(scope="module")
def trial_in_memory(tmp_path_factory):
    """`trial_in_memory(scenario, n)`: trained once for all laws."""
    trials = {}

    def find(name, n):
        if (name, n) not in trials:
            trials[name, n] = in_memory(SCENARIOS[name], n, tmp_path_factory.mktemp(name))
        return trials[name, n]

    return find


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize(("scenario", "law"), [case for case in CASES if case[0] != "workers"])
def test_memory(n, scenario, law, trial_in_memory):  # loader workers fork, which threads do not survive
    LAWS[law](trial_in_memory(scenario, n))


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("scenario", PERTURBED)
def test_memory_resynced(n, scenario, tmp_path):
    resynced(in_memory(PERTURBED[scenario], n, tmp_path))


@pytest.fixture(scope="module", params=[2, 3, 4], ids="n{}".format)
def errors_under_mpi(request, mpirun, tmp_path_factory):
    """{(scenario, law): how it failed}: all scenarios in one start, which takes longer than they do."""
    folder = tmp_path_factory.mktemp("mpi")
    script = Path(__file__).with_name("run_trials.py")
    ended = mpirun(request.param, script, folder, timeout=240, env={"ELCHE_STALL_SECONDS": "60"})
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    lines = [json.loads(line) for line in (folder / "laws.jsonl").read_text().splitlines()]
    return {(line["scenario"], line["law"]): line["error"] for line in lines}


@pytest.mark.parametrize(("scenario", "law"), [*CASES, *((name, "resynced") for name in PERTURBED)])
def test_mpi(scenario, law, errors_under_mpi):
    error = errors_under_mpi[scenario, law]
    assert not error, error
