"""Run under mpirun: loaders with workers; each rank writes what it had and who loaded it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import training_rig as rig

import elche

SETTINGS = {
    "fork": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3},
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "broken": {"num_workers": 1},
}


class Loaded(rig.Squares):
    """Samples that tell who loaded them."""

    def __getitem__(self, i):
        return *super().__getitem__(i), os.getpid()


def main() -> None:
    elche.init()
    outcome = {}
    for name in sys.argv[2:]:
        model = rig.mlp()
        bad = 50 if name == "broken" and elche.rank() == 1 else None
        loader = elche.DataLoader(Loaded(61, bad), 3, shuffle=name != "broken", **SETTINGS[name])
        optimizer = elche.DistributedOptimizer(rig.sgd(model), model.named_parameters(), loader=loader)
        outcome[name] = ids, pids = [], set()
        for _ in range(1 if name == "spawn" else 3):
            ids.append([])
            for x, y, loaders in loader:
                ids[-1] += (10 * x[:, 0]).round().int().tolist()
                pids.update(loaders.tolist())
                optimizer.zero_grad()
                rig.squared(model, (x, y)).backward()
                optimizer.step()
        outcome[name] = ids, sorted(pids), os.getpid()
    Path(sys.argv[1], f"{elche.rank()}.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
