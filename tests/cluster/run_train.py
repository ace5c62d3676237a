"""Trains a small model under elche-run, and goes wrong where it is told to.

    run_train.py FOLDER '{"epochs": 3, "faults": [[2, 10, "kill"]]}'      process 2, in window 10

It writes FOLDER/PROCESS.jsonl, a line for each thing that came to pass. What FOLDER/order-PROCESS holds is a
fault too, to be done at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STARTED = time.monotonic()
folder, told = Path(sys.argv[1]), json.loads(sys.argv[2])
process = int(os.environ["OMPI_COMM_WORLD_RANK"])


def note(**what: Any) -> None:
    with (folder / f"{process}.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\n")


note(pid=os.getpid(), at=STARTED)

import torch  # noqa: E402
from torch import nn  # noqa: E402

import elche  # noqa: E402
from elche.comm.mpi_call import Call  # noqa: E402
from elche.training.shared_reducer import SharedReducer  # noqa: E402

note(imported=time.monotonic())


# What goes wrong at a window's end: within which verb, and what.
WITHIN = {
    "fail_sending": ("all_gather", "SIGKILL"),
    "fail_reducing": ("all_reduce", "SIGKILL"),
    "slow_sending": ("all_gather", "pause"),
    "slow_reducing": ("all_reduce", "pause"),
    "cancel": ("all_reduce", "exception"),
    "fail_adding": ("add", "SIGKILL"),
}


def go_wrong_within(verb: str, kind: str) -> None:
    """Let this process go wrong in the midst of its next such verb: one of the others has its word or sum."""
    if verb == "add":
        SharedReducer.all_reduce = lambda *_, **__: (note(within=verb), os.kill(os.getpid(), signal.SIGKILL))
        return
    plain = Call.run

    def run(call: Any, planned: Any) -> None:
        if call._verb != verb:
            return plain(call, planned)
        call._begun.append(planned)
        receives_and_one_send = len(planned) // 2 + 1
        call._wire.start(planned[:receives_and_one_send])
        planned[receives_and_one_send - 1].Wait()  # where the other is gone: the next time
        Call.run = plain
        note(within=verb)
        if kind == "exception":
            raise KeyboardInterrupt
        if kind == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.5)
        call._wire.start(planned[receives_and_one_send:])
        return call.wait([*planned])

    Call.run = run


class Faults:
    """What goes wrong in this process, and how slow it is."""

    def __init__(self, request_stop: Callable[[], None]) -> None:
        self.request_stop = request_stop
        self.due = [(window, kind) for who, window, kind in told.get("faults", []) if process == who]
        self.order = folder / f"order-{process}"
        self.pace, self.slow_until = told.get("pace", 0.004), 0.0

    def meet(self, epoch: int, window: int) -> None:
        """Be slow for a batch, or do what is due in this window."""
        time.sleep(self.pace * (10 if time.monotonic() < self.slow_until else 1))
        for fault in [fault for fault in self.due if window >= fault[0]]:
            self.due.remove(fault)
            self.do(fault[1], epoch, window)
        if self.order.exists():
            kind = self.order.read_text()
            self.order.unlink()
            self.do(kind, epoch, window)

    def do(self, kind: str, epoch: int, window: int) -> None:
        note(fired=kind, epoch=epoch, window=window, at=time.monotonic())
        if kind == "exception":
            raise ValueError("told to")
        if kind == "exit5":
            sys.exit(5)
        if kind == "_exit3":
            os._exit(3)
        if kind == "loop":
            while True:
                pass
        if kind == "finish":
            self.request_stop()
        if kind == "slow":
            self.slow_until = time.monotonic() + 2.0
        if kind in WITHIN:
            go_wrong_within(*WITHIN[kind])
        if kind in ("SIGKILL", "SIGSTOP", "SIGTERM"):
            os.kill(os.getpid(), getattr(signal, kind))


def sample(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.sin(torch.arange(1, 7) * (index + 1.0))
    return x, x[:3].sum().tanh()[None]


def hash_of(*states: dict[str, Any]) -> str:
    """A hash of tensors and plain values, whatever they are nested in."""
    found = hashlib.sha256()

    def take(value: Any) -> None:
        if isinstance(value, dict):
            for key in value:
                found.update(repr(key).encode())
                take(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                take(item)
        else:
            found.update(value.numpy().tobytes() if torch.is_tensor(value) else repr(value).encode())

    take(states)
    return found.hexdigest()


def main() -> None:
    elche.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = elche.DataLoader(list(map(sample, range(told.get("samples", 400)))), 4, shuffle=True, seed=3)
    optimizer = elche.DistributedOptimizer(
        plain,
        named_parameters=model.named_parameters(),
        loader=loader,
        cadence=elche.Cadence(anchor=2),
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.95)
    state = elche.elastic.TorchState(model=model, optimizer=optimizer, loader=loader, scheduler=scheduler)
    faults, window = Faults(state.request_stop), -1
    epochs = range(told["epochs"]) if told.get("plain") else state.epochs(told["epochs"])
    note(ready=time.monotonic())
    for epoch in epochs:
        for x, y in loader:
            if optimizer.window.index != window:
                window = optimizer.window.index
                note(window=window, epoch=epoch, at=time.monotonic())
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            faults.meet(epoch, window)
            optimizer.step()
        scheduler.step()
    states = model.state_dict(), optimizer.state_dict(), scheduler.state_dict()
    note(ended=hash_of(*states), updates=optimizer.num_updates, size=elche.size(), rank=elche.rank())


if __name__ == "__main__":
    main()
