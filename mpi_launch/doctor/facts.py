"""All that `elche-doctor` knows of a machine, gathered."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from elche.config import read_environment, variables
from elche.environment import LAUNCHERS
from elche.errors import ConfigError
from elche.mpi_launch.command import Mpi
from elche.mpi_launch.doctor import live, machine, probes
from elche.mpi_launch.doctor.findings import exit_code, findings
from elche.mpi_launch.doctor.launcher import launcher_facts, read_mpi
from elche.mpi_launch.doctor.libraries import usable_gpus
from elche.mpi_launch.doctor.problem import Facts, Level


def gather(mpirun: str | None, *, deadline_seconds: float, tries: bool) -> Facts:
    """Ask everything, then try it where nothing forbids.

    Args:
        mpirun: which to use; None: the one that `elche-run` takes.
        deadline_seconds: how long a library, or the live test, may take.
        tries: whether the live test is wanted.

    Returns:
        See `elche.mpi_launch.doctor`.
    """
    shell = variables()
    facts: dict[str, Any] = {
        "elche": _elche(),
        "shell": _shell(shell),
        "mpi": launcher_facts(mpirun, deadline_seconds),
        **_libraries(deadline_seconds),
        **_machine(shell),
    }
    why_not = why_not_live(facts) if tries else "--no-live"
    return facts | {
        "live": _live(facts, shell, deadline_seconds) if why_not is None else {"skipped": why_not}
    }


def why_not_live(facts: Facts) -> str | None:
    """Return what forbids the live test; None: nothing.

    Args:
        facts: all but those of the live test.

    Returns:
        A few words.
    """
    if facts["shell"]["launcher"] is not None:
        return "under an MPI launcher"
    if exit_code(findings({**facts, "live": {"skipped": ""}})) == Level.FATAL:
        return "it could not succeed"
    return None


def _live(facts: Facts, shell: Mapping[str, str], deadline: float) -> dict[str, Any]:
    num_ranks = live.count_ranks(facts["processors"]["cores"], len(usable_gpus(facts)))
    mpi = facts["mpi"]
    loses_one = mpi["kind"] == Mpi.ULFM.name
    return live.try_out(num_ranks, shell, mpirun=mpi["mpirun"], loses_one=loses_one, seconds=deadline)


def _elche() -> dict[str, Any]:
    requires = (re.fullmatch(r"(\w+)>=([\d.]+)", line) for line in metadata.requires("elche") or ())
    return {
        "version": metadata.version("elche"),
        "python": platform.python_version(),
        "executable": sys.executable,
        "needs": {found[1]: found[2] for found in requires if found},
    }


def _shell(shell: Mapping[str, str]) -> dict[str, Any]:
    error = None
    try:
        read_environment()
    except ConfigError as refused:
        error = str(refused)
    return {
        "error": error,
        "launcher": next((name for name in LAUNCHERS if name in shell), None),
        "omp_num_threads": shell.get("OMP_NUM_THREADS") or None,
        "visible_gpus": shell.get("CUDA_VISIBLE_DEVICES"),
        "python_path": shell.get("PYTHONPATH"),
        "folder": str(Path.cwd()),
    }


def _libraries(deadline: float) -> dict[str, Any]:
    commands = {name: probes.command(name, program) for name, program in probes.ALL.items()}
    found = probes.ask(commands, deadline)
    torch, mpi4py = found["torch"], found["mpi4py"]
    family, version = read_mpi(mpi4py.get("library", ""))
    mpirun = mpirun_of(mpi4py.get("libmpi"))
    mpi4py |= {"family": family, "library_version": version, "mpirun": mpirun}
    cupy: dict[str, Any] = {}
    if "error" not in torch:
        ask_cupy = probes.command("cupy", probes.CUPY, torch["cuda"] or "")
        cupy = probes.ask({"cupy": ask_cupy}, deadline)["cupy"]
    return {**found, "cupy": cupy}


def mpirun_of(library: str | None) -> str | None:
    """Return the mpirun that was installed with an MPI library; None: it is not where one would look.

    Args:
        library: the path of libmpi; None: it is not known.

    Returns:
        A path.
    """
    beside = Path(library or "/").parent.parent / "bin" / "mpirun"
    return str(beside) if library is not None and beside.exists() else None


def _machine(shell: Mapping[str, str]) -> dict[str, Any]:
    temporary = Path(shell.get("TMPDIR") or "/tmp")
    return {
        "processors": machine.processors(),
        "root": machine.as_root(shell),
        "shared_memory": machine.storage(machine.SHARED_MEMORY),
        "temporary": machine.storage(temporary),
        "interfaces": machine.interfaces(),
        "loopback": machine.loopback_answers(),
        "stale": {"mpi": machine.stale_mpi(temporary), "elche": machine.stale_elche()},
    }
