"""Run under mpirun with DIRECTORY [LAW [VICTIM]]: every law of LAWS, or that one, or one of LOSSES.

One JSON object a law to DIRECTORY/PROCESS.jsonl; the victim kills itself instead.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from rendezvous_laws import LAWS
from rendezvous_losses import LOSSES

from elche.comm import mpi_rendezvous


def outcome(law: Callable[..., None], *args: object) -> str:
    """Return how `law` failed, or nothing."""
    try:
        law(*args)
    except (Exception, pytest.fail.Exception):
        return traceback.format_exc()
    return ""


def main() -> None:
    folder, names, victims = Path(sys.argv[1]), sys.argv[2:3] or [*LAWS], [*map(int, sys.argv[3:])]
    rendezvous = mpi_rendezvous.rendezvous()
    with (folder / f"{rendezvous.process}.jsonl").open("w") as lines:
        for name in names:
            error = outcome({**LAWS, **LOSSES}[name], rendezvous, *victims)
            if rendezvous.process in victims and not error:
                os.kill(os.getpid(), signal.SIGKILL)
            print(json.dumps({"law": name, "error": error}), file=lines, flush=True)
    os._exit(0)  # after a loss MPI's own end may hang


if __name__ == "__main__":
    main()
