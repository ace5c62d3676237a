"""How tests start ranks, and what they need for it; lets all of them `import waiting`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from elche.errors import ConfigError
from elche.mpi_launch.__main__ import MEMORY
from elche.mpi_launch.command import AS_ROOT, SCRATCH, Mpi, ask_mpi, find_mpirun

Launch = Callable[..., "subprocess.CompletedProcess[str]"]


def run_to_end(
    command: list[str], timeout: float, env: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str]:
    """Run `command` in a process group of its own; when time is up, end all of it and show its output."""
    settings = {**os.environ, **(env or {})}
    with subprocess.Popen(
        command,
        env=settings,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"{' '.join(command)} ran for more than {timeout} s\n{out}\n{err}", pytrace=False)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Ranks that are threads of one process, each with a pool of its own, would only fight for the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def ulfm() -> None:
    """Skips where there is no Open MPI with ULFM."""
    try:
        mpi = ask_mpi(find_mpirun(None))
    except ConfigError as error:
        pytest.skip(str(error))
    if mpi is not Mpi.ULFM:
        pytest.skip(f"mpirun is {mpi.value}: a lost rank ends the job")


@pytest.fixture(scope="session")
def mpirun() -> Launch:
    """`mpirun(n, script, *args, timeout=60, env=None, options=())`: run a script on n ranks to its end.

    Returns a CompletedProcess with text output; whether the exit code is right is the test's to say.
    """
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip(f"no mpirun beside {sys.executable} or on PATH")

    def launch(
        n: int,
        script: Path | str,
        *args: object,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        options: tuple[str, ...] = (),
    ) -> subprocess.CompletedProcess[str]:
        layout = ["--oversubscribe", "--bind-to", "none", "-np", str(n)]
        command = [found, *layout, *options, sys.executable, str(script), *map(str, args)]
        memory = MEMORY if Path(MEMORY).is_dir() else None
        with tempfile.TemporaryDirectory("", "elche-mpi-", memory, ignore_cleanup_errors=True) as scratch:
            given = {**AS_ROOT, **dict.fromkeys(SCRATCH, scratch), **(env or {})}
            return run_to_end(command, timeout, given)

    return launch
