"""One list of laws on every backend: threads in this process, and MPI at 2 to 4 ranks, in both its ways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from all_laws import LAWS

import elche as hvd
from elche.comm import memory

HERE = Path(__file__).parent


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_memory(n, law):
    def one(comm):
        hvd.init(comm)
        try:
            law(comm.rank, n)
        finally:
            hvd.shutdown()

    memory.run(n, one, timeout_seconds=40)


@pytest.fixture(
    scope="module",
    params=[*(("mpi", n) for n in (2, 3, 4)), *(("ulfm", n) for n in (2, 3, 4))],
    ids=lambda way_n: "{}-n{}".format(*way_n),
)
def errors_under_mpi(request, mpirun, tmp_path_factory):
    """n, and {law: {rank: how it failed}}: all laws in one start, which takes longer than they do."""
    way, n = request.param
    options = ("--with-ft", "ulfm") if way == "ulfm" else ()
    if options:
        request.getfixturevalue("ulfm")
    folder = tmp_path_factory.mktemp("laws")
    ended = mpirun(n, HERE / "run_laws.py", folder, options=options, timeout=120.0)
    errors = {}
    for rank in range(n):
        for line in (folder / f"{rank}.jsonl").read_text().splitlines():
            record = json.loads(line)
            errors.setdefault(record["law"], {})[record["rank"]] = record["error"]
    assert ended.returncode == 0, f"{errors}\n{ended.stdout}\n{ended.stderr}"
    return n, errors


@pytest.mark.parametrize("law", LAWS)
def test_mpi(law, errors_under_mpi):
    n, errors = errors_under_mpi
    failed = {rank: error for rank, error in errors[law].items() if error}
    assert not failed, "\n".join(failed.values())
    assert sorted(errors[law]) == list(range(n))
