"""Run under mpirun --with-ft ulfm at 3: a member is stopped in the midst of a verb, and wakes later.

The last process is stopped by the first, three times for each verb. Prints "right" on every process.
"""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np

from elche.comm import mpi_rendezvous
from elche.errors import CommError

COUNT = 2_000_003
VERBS = {  # with what everybody has then
    "all_reduce": (lambda comm, send, recv: comm.all_reduce([send], [recv]), 6.0),
    "broadcast": (lambda comm, send, recv: comm.broadcast([recv], root=1), 3.0),
}


def give_up_after(seconds: float):
    """Return what a watch calls; it finds the others silent then."""
    until = time.monotonic() + seconds

    def watch() -> None:
        if time.monotonic() > until:
            raise CommError("silent")

    return watch


def main() -> None:
    net = mpi_rendezvous.rendezvous()
    everyone, stopped, me = [0, 1, 2], 2, net.process
    pids = net.connect(everyone, "pids", deadline_seconds=10).all_gather(np.array(os.getpid())).tolist()
    send, recv = np.full(COUNT, me + 1.0), np.zeros(COUNT)
    for name, (verb, right) in VERBS.items():
        for turn in range(3):
            comm = net.connect(everyone, f"{name} {turn}", deadline_seconds=10)
            assert comm.agree(True)
            if me == 0:
                threading.Timer(0.01 * turn, os.kill, (pids[stopped], signal.SIGSTOP)).start()
            try:
                while True:
                    if me != stopped:
                        comm.watch = give_up_after(0.3)
                    recv[:] = 3.0 * me
                    verb(comm, send, recv)
                    assert (recv == right).all(), "what was given up counts"
            except CommError:
                comm.revoke()
            if me != stopped:
                two = net.connect([0, 1], f"{name} {turn}, two", deadline_seconds=10)
                two.all_reduce([send], [recv])
                assert two.agree(True)
                if me == 0:
                    os.kill(pids[stopped], signal.SIGCONT)
                for _ in range(50):
                    assert (recv == 3.0).all(), "written to later"
                    assert two.agree(True)
    until = time.monotonic() + 5.0
    while net.wire.sweep():
        assert time.monotonic() < until, "what was given up does not end"
    assert net.connect(everyone, "end", deadline_seconds=10).agree(True)
    print("right", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
