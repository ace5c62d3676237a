"""Starting MPI, and ending it: in the process that started it only, a fork that ends must not."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any


def start_mpi(*, finalize: bool) -> Any:
    """Start MPI, unless somebody has imported mpi4py's MPI before; then its end is mpi4py's own.

    Args:
        finalize: whether MPI_Finalize is called at this process's end.

    Returns:
        The module `mpi4py.MPI`.
    """
    if "mpi4py.MPI" not in sys.modules:
        import mpi4py

        mpi4py.rc.finalize = False  # mpi4py would do it in a forked child, too, which hangs
        if finalize:
            atexit.register(_finalize, os.getpid())
    from mpi4py import MPI

    return MPI


def _finalize(pid: int) -> None:
    from mpi4py import MPI

    if os.getpid() == pid and not MPI.Is_finalized():
        MPI.Finalize()


def has_threads() -> bool:
    """Return whether MPI has been started and lets several threads call it at once."""
    if "mpi4py.MPI" not in sys.modules:
        return False
    from mpi4py import MPI

    return bool(MPI.Query_thread() >= MPI.THREAD_MULTIPLE)
