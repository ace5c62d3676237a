"""Lets these tests, and the script that they start under mpirun, import each other and the laws' `trials`."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "laws")]
pytest.register_assert_rewrite("fault_laws", "trials")

from fault_laws import Job  # noqa: E402
from trials.scenarios import Scenario  # noqa: E402

SCRIPT = Path(__file__).with_name("run_faults.py")
ULFM = ("--with-ft", "ulfm")


def prepare(folder, ranks, scenario, faults, spares, plan):
    faults = list(faults)
    plan = {"seconds": 0.003, "scenario": scenario, "faults": list(map(dataclasses.asdict, faults)), **plan}
    (folder / "plan.json").write_text(json.dumps(plan))
    return lambda: Job(Scenario(**scenario), ranks, faults, folder, spares, "stop" in plan)


@pytest.fixture(scope="session")
def train(mpirun, ulfm, tmp_path_factory):
    """`train(ranks, scenario, *faults, ...)`: a training under mpirun to its end, and what it has printed."""

    def run(ranks, scenario, *faults, spares=0, stall=None, timeout=120, backend="auto", **plan):
        folder = tmp_path_factory.mktemp("faults")
        job = prepare(folder, ranks, scenario, faults, spares, plan)
        env = {"ELCHE_LOG": str(folder / "log.jsonl"), "ELCHE_SPARES": str(spares), "ELCHE_BACKEND": backend}
        if stall is not None:
            env["ELCHE_STALL_SECONDS"] = str(stall)
        ended = mpirun(ranks + spares, SCRIPT, folder, options=ULFM, env=env, timeout=timeout)
        print(ended.stdout, ended.stderr)  # pytest shows it with a failure
        assert ended.returncode == 0
        return job(), ended.stderr

    return run


@pytest.fixture(scope="session")
def launch(train, tmp_path_factory):
    """`launch(ranks, scenario, *faults, stall=1, ...)`: the same, under elche-run."""

    def run(ranks, scenario, *faults, stall, timeout=120, **plan):
        folder = tmp_path_factory.mktemp("launched")
        job = prepare(folder, ranks, scenario, faults, 0, plan)
        options = f"-np {ranks} --stall-seconds {stall} --grace-seconds 2 --log {folder}/log.jsonl".split()
        command = [sys.executable, "-m", "elche.mpi_launch", *options, str(SCRIPT), str(folder)]
        ended = subprocess.run(command, timeout=timeout, capture_output=True, text=True, check=False)
        print(ended.stdout, ended.stderr)
        assert ended.returncode == 0
        return job(), ended.stderr

    return run
