"""What bench_recovery runs under elche-run: training on an emulated device, until it is told to stop."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from recovery_job import ENOUGH, note
from rig import BATCH_SECONDS, BATCH_SIZE, LEARNING_RATE, small_net
from torch.utils.data import TensorDataset

# isort: split
from emulated import EmulatedDevice  # rig puts examples/ on the path

import elche
from elche.world import current

NUM_SAMPLES = 1024  # 16 windows of four ranks, 3.2 s: whole epochs are counted, so they must not be long


def main() -> None:
    torch.set_num_threads(1)
    elche.init()
    note(pid=os.getpid(), clock_started=current().started)
    torch.manual_seed(0)
    model = small_net()
    EmulatedDevice(BATCH_SECONDS / BATCH_SIZE).attach(model)
    x, y = torch.randn(NUM_SAMPLES, 64), torch.randint(10, (NUM_SAMPLES,))
    loader = elche.DataLoader(TensorDataset(x, y), batch_size=BATCH_SIZE, shuffle=True)
    optimizer = elche.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9),
        named_parameters=model.named_parameters(),
        loader=loader,
    )
    state = elche.elastic.TorchState(model=model, optimizer=optimizer, loader=loader)
    enough = Path(os.environ["BENCHMARK_FOLDER"]) / ENOUGH
    note(built=True)
    for _ in state.epochs(1_000_000):
        for x, y in loader:
            if enough.exists():
                state.request_stop()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    if optimizer.num_updates:  # a spare that was never needed has nothing to compare
        parameters = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
        note(parameters=hashlib.sha256(parameters).hexdigest(), updates=optimizer.num_updates)


if __name__ == "__main__":
    main()
