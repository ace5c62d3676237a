"""`elche-run --dry-run`: the variables and the command that would start the job, as a shell takes them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

# What is drawn anew at each start, and so is not known before.
DRAWN = {
    "ELCHE_GUARD": "tcp:TOKEN:PORT:ADDRESS",
    "ELCHE_SNAPSHOTS": "/dev/shm/elche-TOKEN",
    "SCRATCH": "/dev/shm/elche-mpi-TOKEN",
}


def describe_start(command: Sequence[str], job: Mapping[str, str], shell: Mapping[str, str]) -> str:
    """Return what would be started: the variables that the shell has not, or has otherwise, then the command.

    Args:
        command: mpirun's.
        job: its environment.
        shell: this process's own.

    Returns:
        One variable a line, then the command in one line.
    """
    added = [
        f"{name}={shlex.quote(value)}" for name, value in sorted(job.items()) if shell.get(name) != value
    ]
    return "\n".join([*added, shlex.join(command)])
