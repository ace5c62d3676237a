"""One list of laws on every `Rendezvous`: threads in this process, and MPI processes that are killed."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path

import pytest
from rendezvous_laws import LAWS
from rendezvous_losses import LOSSES

from elche.comm.memory_rendezvous import run_elastic

SCRIPT = Path(__file__).with_name("run_rendezvous.py")
ULFM = ("--with-ft", "ulfm")


ONE_THREAD = """
import mpi4py
mpi4py.rc.thread_level = "serialized"
from elche.comm.mpi_rendezvous import rendezvous
from elche.errors import CommError
try:
    rendezvous()
except CommError as error:
    print("refused:", str(error).split(" MPI_THREAD_MULTIPLE")[0])
"""


def must_be_right(outcomes):
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_memory(n, law):
    must_be_right(run_elastic(n, law, timeout_seconds=40))


@pytest.mark.parametrize("law", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize(("n", "victim"), [(2, 0), (2, 1), (3, 0), (3, 1), (4, 3)])
def test_memory_with_a_loss(n, victim, law):
    must_be_right(run_elastic(n, law, victim, timeout_seconds=40))


@pytest.fixture(scope="module")
def run_laws(mpirun, ulfm, tmp_path_factory):
    """`run_laws(n, *loss)`: the script's errors, {law: {process: how it failed}}."""

    def run(n, *loss):
        folder = tmp_path_factory.mktemp("rendezvous")
        ended = mpirun(n, SCRIPT, folder, *loss, options=ULFM, timeout=40)
        errors = {}
        for path in folder.iterdir():
            for line in path.read_text().splitlines():
                record = json.loads(line)
                errors.setdefault(record["law"], {})[int(path.stem)] = record["error"]
        assert ended.returncode == 0, f"{errors}\n{ended.stdout}\n{ended.stderr}"
        return errors

    return run


@pytest.fixture(scope="module", params=[3, 4], ids="n{}".format)
def errors_under_mpi(request, run_laws):
    return request.param, run_laws(request.param)


@pytest.mark.parametrize("law", LAWS)
def test_mpi(law, errors_under_mpi):
    n, errors = errors_under_mpi
    assert errors[law] == dict.fromkeys(range(n), "")


@pytest.mark.parametrize(("law", "n_victim"), [*zip(LOSSES, cycle([(3, 2), (4, 0)]))])
def test_mpi_with_a_loss(law, n_victim, run_laws):
    n, victim = n_victim
    survivors = [process for process in range(n) if process != victim]
    assert run_laws(n, law, victim) == {law: dict.fromkeys(survivors, "")}


def test_mpi_with_a_member_that_stops_and_wakes(run_laws, mpirun):
    ended = mpirun(3, SCRIPT.with_name("run_stopped.py"), options=ULFM, timeout=40)
    assert ended.stdout == "right\n" * 3, ended.stderr


def test_mpi_of_one_thread_is_refused(mpirun, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ONE_THREAD)
    ended = mpirun(1, script)
    assert ended.stdout.startswith("refused: to survive losses elche calls MPI from two threads"), (
        ended.stderr
    )
