"""The live test's figures, read from what elche-run and its ranks have printed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from elche.mpi_launch.doctor.children import Ended
from elche.mpi_launch.doctor.live import TRIAL, count_ranks, read_trial, variables_of

FIGURES = '{"num_ranks": 3, "sum": 3.0}'
LOST = "elche-run: lost rank 2: died (killed by signal 9)"


@pytest.mark.parametrize(
    ("cores", "num_gpus", "num_ranks"),
    [(1, 0, 3), (2, 1, 3), (3, 0, 3), (4, 0, 4), (64, 0, 4), (64, 1, 4), (64, 2, 2), (2, 3, 3), (64, 8, 4)],
)
def test_the_ranks_of_the_test(cores, num_gpus, num_ranks):
    assert count_ranks(cores, num_gpus) == num_ranks


def test_the_test_stays_on_this_machine_and_writes_nothing():
    shell = {
        "ELCHE_LOG": "run.jsonl",
        "SLURM_JOB_ID": "7",
        "PRTE_MCA_prte_default_hostfile": "hosts",
        "HYDRA_HOST_FILE": "hosts",
        "OMP_NUM_THREADS": "2",
        "OMPI_MCA_btl": "self,sm",
    }
    assert variables_of(shell) == {"OMP_NUM_THREADS": "2", "OMPI_MCA_btl": "self,sm"}


def test_one_process_alone_has_nobody_to_kill():
    command = [sys.executable, "-m", TRIAL, "--lose-one"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    figures = json.loads(ran.stdout)
    assert [figures[name] for name in ("num_ranks", "num_ranks_left", "sum", "num_updates")] == [
        1,
        1,
        1.0,
        64,
    ]
    assert figures["next_update_ms"] is None


def test_figures_among_other_lines():
    ended = Ended(0, f"a warning\n{FIGURES}\nbye\n", f"elche: so\n[host] noise\n{LOST}\n")
    assert read_trial(ended, 60.0) == {"told": ["elche: so", LOST], "num_ranks": 3, "sum": 3.0}


def test_where_each_process_is_alone_the_first_counts():
    each = '{{"num_ranks": 1, "sum": {}}}\n'
    assert read_trial(Ended(0, each.format(1.0) + each.format(7.0)), 60.0)["sum"] == 1.0


@pytest.mark.parametrize(
    ("ended", "error"),
    [
        (Ended(None, FIGURES), "no end within 60 s"),
        (Ended(1, "", "Traceback:\nImportError: no torch\n----\nelche-run: failed; exit code 1\n"),
         "exit code 1: ImportError: no torch"),
        (Ended(2, "", "elche-run: no mpirun\n"), "exit code 2: elche-run: no mpirun"),
        (Ended(-9, FIGURES), "killed by signal 9"),
        (Ended(0, "rubbish"), "it tells no figures: rubbish"),
        (Ended(0), "it tells no figures: nothing"),
        (Ended(0, '{"num_ranks": 3, "su'), "it tells no figures: {\"num_ranks\": 3, \"su"),
    ],
)  # fmt: skip
def test_what_has_failed(ended, error):
    assert read_trial(ended, 60.0)["error"] == error
