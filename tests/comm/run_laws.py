"""Run under mpirun with BACKEND and DIRECTORY: every law of laws.py on this rank.

BACKEND is mpi, or direct under --with-ft ulfm. One JSON object a law to DIRECTORY/RANK.jsonl.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from laws import IN_PARTS, LAWS

from elche.comm import mpi, mpi_direct, mpi_rendezvous, mpi_wire
from elche.comm.base import Comm


class Mpi:
    """Makes communicators by mpi.py."""

    max_count: int | None = None

    def connect(self, name: str) -> Comm:
        comm = mpi.world(deadline_seconds=10.0)
        comm._max_count = self.max_count or comm._max_count
        return comm

    def in_parts(self) -> None:
        self.max_count = 1000

    def num_under_way(self) -> int:
        return mpi.sweep_abandoned()


class Direct:
    """Makes communicators by mpi_direct.py."""

    def __init__(self) -> None:
        self.rendezvous = mpi_rendezvous.rendezvous()

    def connect(self, name: str) -> Comm:
        everyone = range(self.rendezvous.num_processes)
        comm = self.rendezvous.connect(everyone, name, deadline_seconds=10.0)
        comm.deadline_seconds = 10.0
        return comm

    def in_parts(self) -> None:
        mpi_wire.LONGEST_BYTES, mpi_direct.SHORT_BYTES, mpi_direct.BLOCK_BYTES = 1000, 0, 4000

    def num_under_way(self) -> int:
        return self.rendezvous.wire.sweep()


def outcome(law: Callable[..., None], name: str, backend: Mpi | Direct, meet: Callable[[], object]) -> str:
    """Return how `law` failed on a communicator of its own, or nothing."""
    try:
        law(backend.connect(name), meet)
        until = time.monotonic() + 10.0
        while backend.num_under_way():  # the late rank needs our hand
            assert time.monotonic() < until, "abandoned requests do not end"
    except Exception:
        return traceback.format_exc()
    return ""


def main() -> None:
    backend = {"mpi": Mpi, "direct": Direct}[sys.argv[1]]()
    round_about = backend.connect("round about")
    round_about.deadline_seconds = 20.0

    def meet() -> None:
        round_about.agree(True)

    with Path(sys.argv[2], f"{round_about.rank}.jsonl").open("w") as lines:

        def run(name: str, law: Callable[..., None]) -> None:
            record = {"law": name, "rank": round_about.rank, "error": outcome(law, name, backend, meet)}
            print(json.dumps(record), file=lines, flush=True)

        for name, law in LAWS.items():
            run(name, law)
        backend.in_parts()
        for name in IN_PARTS:
            run(f"{name}_in_parts", LAWS[name])


if __name__ == "__main__":
    main()
