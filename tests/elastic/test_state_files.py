"""TorchState in files: resumed training goes on as if it had never stopped."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_engine import FakeEngine, job
from torch import nn

from elche.elastic.checkpoint import digest, read
from elche.elastic.state import TorchState
from elche.errors import ConfigError

SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "StepLR": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5),
    "CosineAnnealingLR": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "OneCycleLR": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=10),
    "ReduceLROnPlateau": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    "LambdaLR": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    "SequentialLR": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=2),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        ],
        [2],
    ),
}


def step(sched: Any) -> None:
    sched.step(*([1.0] if isinstance(sched, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_resumed_is_as_if_never_stopped(make: Callable[[Any], Any], tmp_path: Path) -> None:
    def start() -> tuple[TorchState, FakeEngine]:
        model, optimizer, engine = job()
        return TorchState(model, optimizer, scheduler=make(optimizer), best=0), engine

    def train(state: TorchState, engine: FakeEngine, n: int) -> None:
        for epoch in state.epochs(n):
            engine.train_epoch()
            step(state.scheduler)
            state.best = epoch

    (whole, whole_engine), (first, first_engine), (second, second_engine) = start(), start(), start()
    train(whole, whole_engine, 6)
    train(first, first_engine, 3)
    first.save(tmp_path / "it.elche")
    assert second.load(tmp_path / "it.elche") is second
    assert second.best == 2
    train(second, second_engine, 6)
    assert digest(second_engine.capture()) == digest(whole_engine.capture())
    assert digest(second_engine.capture()) != digest(first_engine.capture())


def test_a_scaler_and_an_average_come_back(tmp_path: Path) -> None:
    def start() -> tuple[TorchState, FakeEngine]:
        model, optimizer, engine = job()
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(torch.ones(1))
        ema = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
        )
        return TorchState(model, optimizer, scaler=scaler, ema=ema, dice=Dice()), engine

    state, engine = start()
    for _ in state.epochs(3):
        engine.train_epoch()
        state.ema.update_parameters(state.model)
        state.scaler.update(state.scaler.get_scale() / 2)
        state.dice.random.random()
    # SGD with momentum 0.9, rate 0.5, gradient 1, from 1: 0.5, -0.45, -1.805; averaged by halves.
    assert state.ema.module.weight.tolist() == [[pytest.approx(-0.89), pytest.approx(-0.89)]]
    state.save(tmp_path)
    there, there_engine = start()
    there.load(tmp_path / "window-000003.elche")
    assert there.ema.module.weight.tolist() == state.ema.module.weight.tolist()
    assert there.ema.n_averaged.item() == 3
    assert there.scaler.get_scale() == 1.0
    assert there.dice.random.random() == state.dice.random.random()
    assert digest(there_engine.capture()["model"]) == digest(engine.capture()["model"])


class Dice:
    """Whatever a script keeps, with a state of its own."""

    def __init__(self) -> None:
        self.random = random.Random(7)

    def state_dict(self) -> dict[str, Any]:
        return {"random": self.random.getstate()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.random.setstate(state_dict["random"])


def test_only_the_writer_writes(tmp_path: Path) -> None:
    model, optimizer, engine = job()
    state = TorchState(model, optimizer)
    engine.writer = False
    state.save(tmp_path / "it.elche")
    state.save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    engine.writer = True
    state.save(str(tmp_path / "new" / "it.elche"))
    assert read(tmp_path / "new" / "it.elche")["counters"] == {"epoch": 0, "num_windows": 0}


def test_load_takes_the_newest_of_a_directory(tmp_path: Path) -> None:
    model, optimizer, engine = job()
    state = TorchState(model, optimizer)
    with pytest.raises(ConfigError, match="there is no whole checkpoint in "):
        state.load(tmp_path)
    for _ in state.epochs(3):
        engine.train_epoch()
        state.save(tmp_path)
    newest = tmp_path / "window-000003.elche"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=r"window-000003\.elche is damaged"):
        state.load(newest)
    assert engine.epoch == 3
    with pytest.warns(RuntimeWarning, match="ignored: "):
        state.load(tmp_path)
    assert engine.epoch == 2


def test_load_refuses_another_format_or_other_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer, engine = job()
    state = TorchState(model, optimizer, sched=torch.optim.lr_scheduler.StepLR(optimizer, 2))
    state.save(tmp_path / "it.elche")
    captured = engine.capture()
    monkeypatch.setattr(engine, "capture", lambda: {**captured, "format": 2})
    state.save(tmp_path / "later.elche")
    with pytest.raises(ConfigError, match="holds a state of format 2; this version of elche reads 1"):
        state.load(tmp_path / "later.elche")
    other = TorchState(*job()[:2], ema=nn.Linear(1, 1))
    said = r"objects in .*it\.elche are not the same: missing \['ema'\], too many \['sched'\]"
    with pytest.raises(ConfigError, match=said):
        other.load(tmp_path / "it.elche")


# Stops.


def test_the_engine_writes_at_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, asked = tmp_path / "told" / "deep", tmp_path / "asked"
    monkeypatch.setenv("ELCHE_CHECKPOINT", str(told))
    for directory, arguments in ((told, {}), (asked, {"checkpoint": asked})):
        model, optimizer, engine = job()
        state = TorchState(model, optimizer, **arguments)
        assert list(directory.iterdir()) == []
        engine.train_epoch()
        assert engine.on_stop is not None
        engine.on_stop()
        engine.train_epoch()
        state.save_on_stop()
        assert sorted(directory.iterdir()) == [directory / f"window-00000{n}.elche" for n in (1, 2)]


def test_without_a_directory_nothing_is_written_at_a_stop() -> None:
    model, optimizer, engine = job()
    TorchState(model, optimizer).save_on_stop()
    assert engine.on_stop is None
