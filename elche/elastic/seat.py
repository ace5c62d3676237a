"""A seat: a process that MPI knows from the start, asleep until a slot is to be filled.

    python -m elche.elastic.seat SCRIPT ARGUMENTS
    python -m elche.elastic.seat -m MODULE ARGUMENTS

It holds MPI and nothing else, 30 MB or so. Woken, it becomes the script: imports, builds, and enters by the
same door as everybody. MPI_Comm_spawn would start a fresh process instead, but with Open MPI 5.0.11 no
communicator of old and spawned processes could be made after a loss, and mpirun ended with 1.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time

from elche.comm.base import Rendezvous
from elche.comm.mpi_rendezvous import rendezvous

NAP_SECONDS = 0.05


def sleep(net: Rendezvous, first_seat: int) -> bool:
    """Wait until this process is needed.

    Args:
        net: how it hears of that.
        first_seat: number of the first seat; where all processes before it are gone, nobody will come.

    Returns:
        Whether it is; else the job has ended.
    """
    others = frozenset(range(first_seat))
    while True:
        if any(json.loads(message)[0] == "wake" for _, message in net.receive()):
            return True
        if net.look_up("end") is not None or others <= net.gone():
            return False
        time.sleep(NAP_SECONDS)


def main() -> None:
    """Sleep, then be the script."""
    from elche.config import read_environment

    net = rendezvous()
    if not sleep(net, net.num_processes - read_environment().seats):
        os._exit(0)  # MPI_Finalize may hang after a loss
    be(sys.argv[1:])


def be(words: list[str]) -> None:
    """Become a script, or with -m in front a module, as python itself would.

    Args:
        words: the script or -m and the module, then its arguments.
    """
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    script, *_ = sys.argv = words
    sys.path[0] = os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH120 - as python itself does it
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
