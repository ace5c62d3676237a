"""The training of `recovery_elche.py` the usual way: torch DDP under torchrun, a snapshot every 20 steps."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from recovery_job import FOLDER, note
from rig import BATCH_SECONDS, BATCH_SIZE, LEARNING_RATE, small_net
from torch.nn.parallel import DistributedDataParallel

# isort: split
from emulated import EmulatedDevice  # rig puts examples/ on the path

SNAPSHOT_EVERY = 20


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = small_net()
    EmulatedDevice(BATCH_SECONDS / BATCH_SIZE).attach(model)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=LEARNING_RATE, momentum=0.9)
    snapshot, step = Path(os.environ[FOLDER]) / "snapshot.pt", 0
    if snapshot.exists():
        kept = torch.load(snapshot)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"]
    note(pid=os.getpid(), resumed_at=step)
    while True:  # until torchrun is told to end
        x, y = torch.randn(BATCH_SIZE, 64), torch.randint(10, (BATCH_SIZE,))
        optimizer.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()
        step += 1
        note(step=step, seconds=time.perf_counter())
        if step % SNAPSHOT_EVERY == 0 and dist.get_rank() == 0:
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(kept, aside := snapshot.with_suffix(".aside"))
            aside.rename(snapshot)


if __name__ == "__main__":
    main()
