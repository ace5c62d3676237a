"""Laws 1, 2, 3, 4 and 6 of DESIGN section 6: every scenario, in memory and under mpirun, at 1 to 4 ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trials.laws import LAWS
from trials.scenarios import SCENARIOS
from trials.starting import in_memory

CASES = [
    pytest.param(scenario, law, id=f"{scenario}-{law}")
    for scenario in SCENARIOS
    for law in LAWS
    if law != "deterministic" or SCENARIOS[scenario].ms is not None
]


@pytest.fixture(scope="module")
def trial_in_memory(tmp_path_factory):
    """`trial_in_memory(scenario, n)`: trained once for all laws."""
    trials = {}

    def find(scenario, n):
        if (scenario, n) not in trials:
            folder = tmp_path_factory.mktemp(scenario)
            trials[scenario, n] = in_memory(SCENARIOS[scenario], n, folder)
        return trials[scenario, n]

    return find


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize(("scenario", "law"), CASES)
def test_memory(n, scenario, law, trial_in_memory):
    LAWS[law](trial_in_memory(scenario, n))


@pytest.fixture(scope="module", params=[2, 3, 4], ids="n{}".format)
def errors_under_mpi(request, mpirun, tmp_path_factory):
    """{(scenario, law): how it failed}: all scenarios in one start, which takes longer than they do."""
    folder = tmp_path_factory.mktemp("mpi")
    script = Path(__file__).with_name("run_trials.py")
    ended = mpirun(request.param, script, folder, timeout=240, env={"ELCHE_STALL_SECONDS": "60"})
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    lines = [json.loads(line) for line in (folder / "laws.jsonl").read_text().splitlines()]
    return {(line["scenario"], line["law"]): line["error"] for line in lines}


@pytest.mark.parametrize(("scenario", "law"), CASES)
def test_mpi(scenario, law, errors_under_mpi):
    assert not errors_under_mpi[scenario, law], errors_under_mpi[scenario, law]
