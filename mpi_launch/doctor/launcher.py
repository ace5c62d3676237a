"""Which MPI an mpirun or a library is of, by its own words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from elche.errors import ConfigError
from elche.mpi_launch.command import Mpi, ask_mpi, find_mpirun
from elche.mpi_launch.doctor.children import run_all
from elche.mpi_launch.doctor.probes import failure_of, one_line

# What `mpirun --version` and MPI_Get_library_version say; Hydra starts MPICH and what is made of it.
FAMILIES = (
    ("Open MPI", r"Open MPI\)? v?(\d[\w.]*)"),
    ("Intel MPI", r"Intel\(R\) MPI Library.*?(\d{4}[\d.]*)"),
    ("MVAPICH", r"MVAPICH\d?\s+Version\s*:\s*(\d[\w.]*)"),
    ("MPICH", r"(?:MPICH|HYDRA build details:)\s+Version:\s*(\d[\w.]*)"),
)
CUDA_AWARE = re.compile(r"built_with_cuda_support:value:(true|false)")


def read_mpi(text: str) -> tuple[str | None, str | None]:
    """Return the family and the version.

    Args:
        text: what an mpirun or a library says of itself.

    Returns:
        Such as ("Open MPI", "5.0.7"); twice None where the words are unknown.
    """
    for family, pattern in FAMILIES:
        if found := re.search(pattern, text, re.DOTALL):
            return family, found[1]
    return None, None


def launcher_facts(asked: str | None, seconds: float) -> dict[str, Any]:
    """Ask an mpirun what it is.

    Args:
        asked: its path; None: the one that `elche-run` takes.
        seconds: how long it may take.

    Returns:
        "mpirun", and "family", "version", "kind" (a name of `Mpi`) and "is_cuda_aware" (None: it does not
        say), or an "error".
    """
    try:
        mpirun = find_mpirun(asked)
    except ConfigError as error:
        return {"mpirun": None, "error": str(error)}
    info = str(Path(mpirun).with_name("ompi_info"))
    asks = {"version": [mpirun, "--version"], "info": [info, "--parsable", "--all", "--level", "9"]}
    told = run_all(asks, seconds)
    failure = failure_of(told["version"], seconds)
    if failure is not None:
        return {"mpirun": mpirun, "error": f"{mpirun} --version: {one_line(failure)}"}
    family, version = read_mpi(told["version"].out)
    cuda = CUDA_AWARE.search(told["info"].out)
    return {
        "mpirun": mpirun,
        "family": family,
        "version": version,
        "kind": ask_mpi(mpirun).name if family == "Open MPI" else Mpi.OTHER.name,
        "is_cuda_aware": None if cuda is None else cuda[1] == "true",
    }
