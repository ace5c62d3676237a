"""Run under mpirun: every law of laws.py on this rank; one JSON object a law to DIRECTORY/RANK.jsonl."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from laws import IN_PARTS, LAWS

from elche.comm import mpi


def outcome(law: Callable[..., None], meet: Callable[[], object], max_count: int | None) -> str:
    """Return how `law` failed on a communicator of its own, or nothing."""
    comm = mpi.world(deadline_seconds=10.0)
    comm._max_count = max_count or comm._max_count
    try:
        law(comm, meet)
        until = time.monotonic() + 10.0
        while mpi.sweep_abandoned():  # the late rank needs our hand
            assert time.monotonic() < until, "abandoned requests do not end"
    except Exception:
        return traceback.format_exc()
    return ""


def main() -> None:
    round_about = mpi.world(deadline_seconds=20.0)
    runs = [(name, law, None) for name, law in LAWS.items()]
    runs += [(f"{name}_in_parts", LAWS[name], 1000) for name in IN_PARTS]
    with Path(sys.argv[1], f"{round_about.rank}.jsonl").open("w") as lines:
        for name, law, max_count in runs:
            error = outcome(law, lambda: round_about.agree(True), max_count)
            print(json.dumps({"law": name, "rank": round_about.rank, "error": error}), file=lines, flush=True)


if __name__ == "__main__":
    main()
