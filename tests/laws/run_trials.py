"""Run under mpirun: every scenario on this rank; one JSON object a law to FOLDER/laws.jsonl, by rank 0."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from trials.laws import LAWS, Trial, laws_of, resynced
from trials.scenarios import PERTURBED, SCENARIOS
from trials.starting import under_mpi


def how_broken(law: Callable[[Trial], None], trial: Trial) -> str:
    """Return how a law is broken, or nothing."""
    try:
        law(trial)
    except Exception:
        return traceback.format_exc()
    return ""


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for name, scenario in {**SCENARIOS, **PERTURBED}.items():
        laws = [resynced] if scenario.perturbed else [LAWS[law] for law in laws_of(scenario)]
        trial = under_mpi(scenario, folder / name)
        if trial is not None:
            with (folder / "laws.jsonl").open("a") as lines:
                for law in laws:
                    error = how_broken(law, trial)
                    print(json.dumps({"scenario": name, "law": law.__name__, "error": error}), file=lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
