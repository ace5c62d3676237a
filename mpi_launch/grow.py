"""`elche-run grow N --pid PID`: let a running job have N more ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from elche.errors import require
from elche.mpi_launch.arguments import Parser, number, positive
from elche.mpi_launch.signals import GROW_QUEUED

NAMES = ("elche-run", "elche.mpi_launch")


def grow(argv: Sequence[str]) -> str:
    """Ask a launcher for more ranks, with one signal each.

    Args:
        argv: N --pid PID.

    Returns:
        What was done.

    Raises:
        ConfigError: N or PID is refused.
    """
    parser = Parser(prog="elche-run grow", description="Let a running job have N more ranks.")
    parser.add_argument("n", type=positive, metavar="N")
    parser.add_argument("--pid", type=number, required=True, metavar="PID", help="its elche-run")
    asked = parser.parse_args(argv)
    require(_is_launcher(asked.pid), "--pid", asked.pid, "the process of a running elche-run")
    for _ in range(asked.n):
        os.kill(asked.pid, GROW_QUEUED)
    return f"asked process {asked.pid} for {asked.n} more"


def _is_launcher(pid: int) -> bool:
    """Return whether the process is one of ours and catches the signal, which would end any other."""
    folder = Path("/proc") / str(pid)
    try:
        words = (folder / "cmdline").read_text().split("\0")
        status = (folder / "status").read_text()
    except OSError:
        return False
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return any(Path(word).name in NAMES for word in words) and bool(caught >> (GROW_QUEUED - 1) & 1)
