"""What only MPI can do: a world without mpirun, ending the job, an import that starts nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

SOLO = """
import sys
import numpy as np
from elche.comm import mpi
assert "mpi4py" not in sys.modules
comm = mpi.world()
recv = np.zeros(3, np.float32)
comm.all_reduce([np.ones(3, np.float32)], [recv])
print(comm.rank, comm.size, recv.tolist(), comm.agree(True), comm.agree(False))
"""

ABORT = """
from elche.comm import mpi
comm = mpi.world(deadline_seconds=30.0)
if comm.rank == 1:
    print("last words", end="")  # no newline: only a flush shows them
    comm.abort(7)
comm.agree(True)
"""

TRUNCATED = """
import numpy as np
from elche.comm import mpi
from elche.errors import CommError
comm = mpi.world(deadline_seconds=5.0)
try:
    comm.all_gather(np.zeros(8 if comm.rank else 4))
except CommError as error:
    print(f"rank {comm.rank}: {error}", flush=True)
    assert error.__cause__ is not None or "did not end" in str(error)
try:
    comm.agree(True)
except CommError as error:
    print(f"then: {error}", flush=True)
comm.abort(3)
"""


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write


def test_plain_python_is_a_world_of_one(script):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    ended = subprocess.run(
        [sys.executable, script(SOLO)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout.split("\n")[0] == "0 1 [1.0, 1.0, 1.0] True False", ended.stderr
    assert ended.returncode == 0


def test_abort_ends_the_job_with_its_code(script, mpirun):
    ended = mpirun(3, script(ABORT))
    assert ended.returncode == 7, ended.stderr
    assert "last words" in ended.stdout


def test_errors_of_mpi_become_comm_errors(script, mpirun):
    ended = mpirun(2, script(TRUNCATED))
    assert "MPI_ERR_TRUNCATE" in ended.stdout, ended.stdout + ended.stderr
    assert "all_gather failed on rank 0 of 2" in ended.stdout
    assert "then: rank 0 of 2 cannot agree: all_gather failed" in ended.stdout
