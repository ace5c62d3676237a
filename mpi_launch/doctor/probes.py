"""What `elche-doctor` asks in child processes: each imports one library and tells what it finds there.

A probe's answer is a dict of plain values. One that failed has an "error" in words, which is "missing" where
the library is not installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from elche.mpi_launch.doctor.children import Ended, run_all
from elche.mpi_launch.verdict import describe

Answer = dict[str, Any]
MARK = "elche-doctor answers: "
MISSING = "missing"
LONGEST = 160

# Each answer is told at once, so that a crash in the next line does not take it along.
PROLOGUE = f"""
import importlib.util, json, sys

def answer(**facts):
    sys.stdout.write("\\n{MARK}" + json.dumps(facts) + "\\n")
    sys.stdout.flush()

def locate(name):
    spec = importlib.util.find_spec(name)
    answer(path=spec and (spec.origin or str(list(spec.submodule_search_locations))))

def tell(kind, error, _):
    is_missing = kind is ModuleNotFoundError and error.name == sys.argv[1]
    answer(error="{MISSING}" if is_missing else f"{{kind.__name__}}: {{error}}")

sys.excepthook = tell
"""
EPILOGUE = """
answer(done=True)
"""
VERSION = """
locate(sys.argv[1])
module = __import__(sys.argv[1])
answer(version=str(module.__version__))
"""
# MPI is not started: it would take this process for a job of its own.
MPI4PY = """
locate("mpi4py")
import mpi4py
answer(version=mpi4py.__version__)
mpi4py.rc.initialize = False
from mpi4py import MPI
answer(library=MPI.Get_library_version().strip("\\0 \\n"))
with open("/proc/self/maps") as maps:
    files = (line.split()[-1] for line in maps if "/libmpi" in line)
    answer(libmpi=next(files, None))
"""
TORCH = """
import warnings
locate("torch")
import torch
answer(version=torch.__version__, cuda=torch.version.cuda, threads=torch.get_num_threads(), gpus=[])
torch.ones(1).numpy()
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
if told:
    answer(cuda_told=str(told[-1].message))
gpus = []
for index in range(count):
    gpu = torch.cuda.get_device_properties(index)
    found = {"index": index, "name": gpu.name, "sm_major": gpu.major, "sm_minor": gpu.minor}
    found["vram_bytes"], found["error"] = gpu.total_memory, None
    try:
        if torch.arange(4.0, device=f"cuda:{index}").sum().item() != 6.0:
            found["error"] = "it sums 0, 1, 2, 3 to something else than 6"
    except Exception as error:
        found["error"] = str(error).partition("\\n")[0]
    gpus.append(found)
answer(gpus=gpus)
"""
# What training itself asks before it sums by NCCL.
CUPY = """
from elche.comm import nccl_ready
cupy, reason = nccl_ready.find(sys.argv[2] or None)
answer(reason=reason)
if cupy is not None:
    answer(version=cupy.__version__, cuda=cupy.cuda.runtime.runtimeGetVersion())
    if cupy.cuda.nccl.available:
        answer(nccl=cupy.cuda.nccl.get_version())
"""
DRIVER = """
from elche.policy import devices
answer(gpus=devices.probe())
"""
HOST = """
import socket
answer(name=socket.gethostname())
answer(address=socket.gethostbyname(socket.gethostname()))
"""
ALL = {
    "numpy": VERSION,
    "triton": VERSION,
    "mpi4py": MPI4PY,
    "torch": TORCH,
    "driver": DRIVER,
    "host": HOST,
}


def command(name: str, program: str, *words: str) -> list[str]:
    """Return the command that asks.

    Args:
        name: of the library.
        program: asks it.
        *words: what the program wants to know.

    Returns:
        Its words.
    """
    return [sys.executable, "-c", PROLOGUE + program + EPILOGUE, name, *words]


def ask(commands: Mapping[str, Sequence[str]], seconds: float) -> dict[str, Answer]:
    """Ask side by side.

    Args:
        commands: by name.
        seconds: how long each may take.

    Returns:
        The answers, by the same names.
    """
    return {name: read(ended, seconds) for name, ended in run_all(commands, seconds).items()}


def read(ended: Ended, seconds: float) -> Answer:
    """Return what a probe has told.

    Args:
        ended: how it ended.
        seconds: how long it was given.

    Returns:
        All that it answered, and an "error" where it did not come to its end.
    """
    found: Answer = {}
    for line in ended.out.splitlines():
        if line.startswith(MARK):
            with suppress(ValueError):  # somebody has printed into it
                found |= json.loads(line.removeprefix(MARK))
    is_done = found.pop("done", False)
    failure = failure_of(ended, seconds)
    if failure is None and not is_done:
        failure = "it ends before it has answered"
    if failure is not None:
        found.setdefault("error", failure)
    if "error" in found:
        found["error"] = one_line(found["error"])
    return found


def failure_of(ended: Ended, seconds: float) -> str | None:
    """Return what went wrong, in words; None: nothing."""
    if ended.code is None:
        return f"no end within {seconds:g} s"
    if ended.code == 0:
        return None
    last = ended.err.strip().rpartition("\n")[2]
    return f"{describe(ended.code)}{': ' * bool(last)}{last}"


def one_line(text: str, longest: int = LONGEST) -> str:
    """Return a text without line breaks, cut where it is too long."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 3] + "..."
