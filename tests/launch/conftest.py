"""Lets these tests `import launch_rig`, and ends what they have started."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from launch_rig import Started

FAKE = """#!{python}
# An mpirun that starts what it is told to and never ends.
import os, signal, subprocess, sys, time
if "--version" in sys.argv:
    print("mpirun (Open MPI) 4.1.4")
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
start = sys.argv.index("-np")
for rank in range(int(sys.argv[start + 1])):
    names = {{"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": sys.argv[start + 1]}}
    subprocess.Popen(sys.argv[start + 2 :], env={{**os.environ, **names}})
while True:
    time.sleep(1000)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """`start(module, *options, words=..., env=...)`; what still runs at the test's end is killed."""
    all_started: list[Started] = []

    def begin(module: str, *options: str, words: Any, env: dict[str, str] | None = None) -> Started:
        all_started.append(Started(tmp_path, module, options, words, env or {}))
        return all_started[-1]

    yield begin
    for started in all_started:
        if started.process.poll() is None:
            os.killpg(started.process.pid, signal.SIGKILL)
        started.process.communicate()


@pytest.fixture
def hanging_mpirun(tmp_path: Path) -> str:
    """An mpirun that never ends."""
    path = tmp_path / "mpirun"
    path.write_text(FAKE.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)
