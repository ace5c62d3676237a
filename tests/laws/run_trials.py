"""Run under mpirun: every scenario on this rank; one JSON object a law to FOLDER/laws.jsonl, by rank 0."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import torch
from trials.laws import LAWS, Trial
from trials.scenarios import SCENARIOS
from trials.starting import under_mpi


def broken(law: str, trial: Trial) -> str:
    """Return how a law is broken, or nothing."""
    try:
        LAWS[law](trial)
    except Exception:
        return traceback.format_exc()
    return ""


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for name, scenario in SCENARIOS.items():
        trial = under_mpi(scenario, folder / name)
        if trial is not None:
            with (folder / "laws.jsonl").open("a") as lines:
                for law in LAWS:
                    print(json.dumps({"scenario": name, "law": law, "error": broken(law, trial)}), file=lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
