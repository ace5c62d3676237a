"""One list of laws on every backend: threads in this process, and MPI at 1 to 4 ranks, in both its ways."""

from __future__ import annotations

import json
import runpy
import threading
from pathlib import Path

import pytest

from elche.comm import memory

HERE = Path(__file__).parent
DEFINED = runpy.run_path(str(HERE / "laws.py"))
LAWS, IN_PARTS = DEFINED["LAWS"], DEFINED["IN_PARTS"]


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_memory(n, law):
    memory.run(n, law, threading.Barrier(n).wait, timeout_seconds=30)


@pytest.fixture(
    scope="module",
    params=[*(("mpi", n) for n in (1, 2, 3, 4)), *(("direct", n) for n in (2, 3, 4))],
    ids=lambda backend_n: "{}-n{}".format(*backend_n),
)
def errors_under_mpi(request, mpirun, tmp_path_factory):
    """n, and {law: {rank: how it failed}}: all laws in one start, which takes longer than they do."""
    backend, n = request.param
    options = ("--with-ft", "ulfm") if backend == "direct" else ()
    if options:
        request.getfixturevalue("ulfm")
    folder = tmp_path_factory.mktemp("laws")
    ended = mpirun(n, HERE / "run_laws.py", backend, folder, options=options)
    errors = {}
    for rank in range(n):
        for line in (folder / f"{rank}.jsonl").read_text().splitlines():
            record = json.loads(line)
            errors.setdefault(record["law"], {})[record["rank"]] = record["error"]
    assert ended.returncode == 0, f"{errors}\n{ended.stdout}\n{ended.stderr}"
    return n, errors


@pytest.mark.parametrize("law", [*LAWS, *(f"{name}_in_parts" for name in IN_PARTS)])
def test_mpi(law, errors_under_mpi):
    n, errors = errors_under_mpi
    failed = {rank: error for rank, error in errors[law].items() if error}
    assert not failed, "\n".join(failed.values())
    assert sorted(errors[law]) == list(range(n))
