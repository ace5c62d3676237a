"""Run under mpirun with a FOLDER: every law on this rank, one JSON object a law to FOLDER/RANK.jsonl."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import torch
from all_laws import LAWS

import elche as hvd


def how_broken(law) -> str:
    """Return how a law is broken, or nothing."""
    try:
        law(hvd.rank(), hvd.size())
    except Exception:
        return traceback.format_exc()
    return ""


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    with Path(sys.argv[1], f"{hvd.rank()}.jsonl").open("w") as lines:
        for name, law in LAWS.items():
            record = {"law": name, "rank": hvd.rank(), "error": how_broken(law)}
            print(json.dumps(record), file=lines, flush=True)


if __name__ == "__main__":
    main()
