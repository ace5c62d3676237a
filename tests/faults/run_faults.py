"""Run under mpirun: train as a user does, while the faults of `FOLDER/plan.json` come to pass.

Every process that comes to the end of its script writes `FOLDER/PROCESS.pt`: what it saw and what it became.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "laws"))

import torch
from fault_points import Fault, Faults
from trials.models import loss_of, make_model
from trials.scenarios import Scenario
from trials.training import digest, make_loader

import elche
from elche.world import current

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SOME_WINDOWS = 5


class Stop:
    """Asks for the job's end some windows after so many losses and entries, if all faults have fired."""

    def __init__(self, folder: Path, faults: int, lost: int, joined: int) -> None:
        self._log, self._fired = folder / "log.jsonl", folder / "fired.jsonl"
        self._faults, self._wanted = faults, {"lost": lost, "joined": joined}
        self._read = self._windows = 0

    def is_due(self) -> bool:
        with self._log.open() as file:
            file.seek(self._read)
            for line in file.read().splitlines():
                event = json.loads(line)["event"]
                if event in self._wanted:
                    self._wanted[event] -= 1
                self._windows = self._windows + 1 if event == "window" else 0
            self._read = file.tell()
        enough = max(self._wanted.values()) <= 0 and self._windows >= SOME_WINDOWS
        return enough and len(self._fired.read_text().splitlines()) == self._faults


def main(folder: Path, plan: dict[str, Any]) -> None:
    process = int(os.environ["OMPI_COMM_WORLD_RANK"])
    faults = Faults(process, [Fault(**fault) for fault in plan["faults"]], folder)
    faults.watch()
    torch.set_num_threads(1)
    elche.init()

    scenario = Scenario(**plan["scenario"])
    model = make_model(scenario.model, scenario.dtype, seed=process)
    loader = make_loader(scenario, elche.size())
    read = type(loader.dataset).__getitem__
    type(loader.dataset).__getitem__ = lambda samples, i: (faults.load(), read(samples, i))[1]
    optimizer = elche.DistributedOptimizer(
        scenario.make_optimizer(model),
        named_parameters=model.named_parameters(),
        loader=loader,
        cadence=scenario.make_cadence(),
    )
    faults.job = optimizer._engine.job
    state = elche.elastic.TorchState(model=model, optimizer=optimizer, loader=loader)
    record: dict[str, Any] = {"before": None, "seen": [], "resident_bytes": []}
    state.register_reset_callbacks([lambda: record["resident_bytes"].append(resident_bytes())])
    stop = Stop(folder, len(plan["faults"]), **plan["stop"]) if "stop" in plan else None
    (folder / "checkpoints").mkdir(exist_ok=True)

    window = number = -1
    for _ in range(scenario.epochs) if plan.get("plain_loop") else state.epochs(scenario.epochs):
        for batch in loader:
            before, window = window, optimizer.window.index
            number = number + 1 if before == window else 0
            if record["before"] is None:
                record["before"] = window, copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            record["seen"].append((window, batch[2].tolist()))
            time.sleep(plan["seconds"] * faults.slowness)
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            if faults.in_batch(number):
                return
            optimizer.step()
            if stop is not None and optimizer.updated and elche.rank() == 0 and stop.is_due():
                state.request_stop()
                stop = None
        faults.here("epoch")
        state.save(folder / "checkpoints")

    record |= {
        "inside": current().inside,
        "digest": digest(model.state_dict(), optimizer.state_dict(), faults.job.state_dict()),
        "after": (model.state_dict(), optimizer.state_dict()),
        "num_updates": optimizer.num_updates,
        "windows": faults.job.window,
    }
    torch.save(record, folder / f"{process}.pt")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads((Path(sys.argv[1]) / "plan.json").read_text()))
