"""TorchState over an engine that trains next to nothing: what it hands over, and what it refuses."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_engine import FakeEngine, Loader, job
from torch import nn

import elche
from elche.elastic.checkpoint import digest
from elche.elastic.state import TorchState
from elche.errors import ConfigError, UsageError

# What it holds.


def test_attributes_give_the_objects_back() -> None:
    model, optimizer, engine = job()
    loader, sched = Loader(engine), torch.optim.lr_scheduler.StepLR(optimizer, 2)
    state = elche.elastic.TorchState(
        model=model, optimizer=optimizer, loader=loader, scheduler=sched, epoch=0, best=None
    )
    assert state.model is model
    assert state.optimizer is optimizer
    assert state.loader is loader
    assert state.scheduler is sched
    assert (state.epoch, state.best) == (0, None)
    with pytest.raises(AttributeError, match="this TorchState holds no 'worst'"):
        state.worst  # noqa: B018
    assert engine.extras["scheduler"] is sched
    assert set(engine.extras) == {"state.values", "scheduler"}


def test_horovods_order_of_arguments() -> None:
    model, optimizer, _ = job()
    state = TorchState(model, optimizer, batch=0, epoch=0)
    state.batch += 5
    assert (state.batch, state.epoch) == (5, 0)


def test_values_travel_together() -> None:
    _, optimizer, engine = job()
    state = TorchState(optimizer=optimizer, epoch=0, history=[1], note="", table=torch.zeros(2))
    state.epoch, state.note, state.table = 3, "x", torch.ones(2, requires_grad=True) * 2
    state.history.append(2)
    packed = copy.deepcopy(engine.extras["state.values"].state_dict())
    assert packed.pop("table").tolist() == [2, 2]
    assert packed == {"epoch": 3, "history": [1, 2], "note": "x"}

    _, other_optimizer, other_engine = job()
    other = TorchState(optimizer=other_optimizer, epoch=0, history=[], note="", table=torch.zeros(2))
    other_engine.extras["state.values"].load_state_dict(engine.extras["state.values"].state_dict())
    assert (other.epoch, other.history, other.note, other.table.tolist()) == (3, [1, 2], "x", [2, 2])
    with pytest.raises(ConfigError, match=r"values are not the same: missing \['epoch', .*too many \['b'\]"):
        other_engine.extras["state.values"].load_state_dict({"b": 1})


def test_frozen_parameters_travel() -> None:
    def frozen(value: float) -> tuple[nn.Module, FakeEngine]:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        nn.init.constant_(model[0].weight, value)
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        optimizer._engine = FakeEngine(model, optimizer)  # type: ignore[attr-defined]
        TorchState(model, optimizer)
        return model, optimizer._engine

    (_, here), (newcomer, there) = frozen(3.0), frozen(0.0)
    carried = here.extras["model"].state_dict()
    assert sorted(carried) == ["0.bias", "0.weight"]
    there.extras["model"].load_state_dict(carried)
    assert newcomer[0].weight.tolist() == [[3, 3], [3, 3]]
    carried["0.bias"] = torch.zeros(1)
    with pytest.raises(ConfigError, match=r"parameter 0.bias has shape \(2,\), the state's has \(1,\)"):
        there.extras["model"].load_state_dict(carried)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"optimizer": None}, r"optimizer must be what .* returned, got NoneType"),
    ({"optimizer": torch.optim.SGD([torch.zeros(1)], lr=1)}, r"optimizer must be what .* returned, got SGD"),
    ({"model": "resnet"}, "model must be a torch.nn.Module, got str"),
    ({"model": nn.Linear(2, 1)}, "model has no parameter that optimizer trains"),
    ({"loader": [1, 2]}, r"loader must be the one given to DistributedOptimizer\(loader=...\)"),
    ({"rule": lambda epoch: epoch}, r"rule cannot travel: .* cannot be pickled"),
    ({"rows": (row for row in ())}, r"rows cannot travel: .* cannot be pickled"),
    ({"epochs": 3}, "cannot call one of its objects 'epochs'"),
    ({"_kept": 3}, "cannot call one of its objects '_kept'"),
    ({"a b": 3}, "cannot call one of its objects 'a b'"),
    ({"checkpoint": __file__}, r"checkpoint must be a directory, got '.*test_state.py'"),
    ({"checkpoint": 3}, "checkpoint must be the path of a file or a directory, got 3"),
]


@pytest.mark.parametrize(("objects", "said"), REFUSED, ids=[next(iter(objects)) for objects, _ in REFUSED])
def test_refused_and_nothing_done(objects: dict[str, Any], said: str) -> None:
    model, optimizer, engine = job()
    with pytest.raises(ConfigError, match=said):
        TorchState(**{"model": model, "optimizer": optimizer, **objects})
    assert engine.extras == {}
    assert engine.on_stop is None


def test_a_second_state_or_optimizer_is_refused() -> None:
    model, optimizer, _ = job()
    TorchState(model, optimizer)
    with pytest.raises(ConfigError, match="the optimizer has a TorchState already"):
        TorchState(model, optimizer)
    other_model, other_optimizer, other_engine = job()
    for name, one in (("critic", optimizer), ("batches", Loader(other_engine))):
        with pytest.raises(ConfigError, match=f"{name} is a DistributedOptimizer, or its DataLoader"):
            TorchState(other_model, other_optimizer, **{name: one})


def test_attributes_that_cannot_be_set() -> None:
    model, optimizer, _ = job()
    state = TorchState(model, optimizer, best=0)
    with pytest.raises(ConfigError, match="model cannot be replaced"):
        state.model = nn.Linear(2, 1)
    with pytest.raises(ConfigError, match=r"worst would not travel: .*TorchState\(worst=...\)"):
        state.worst = 3
    with pytest.raises(ConfigError, match="best cannot travel"):
        state.best = lambda: 3
    assert state.best == 0


def test_the_engine_does_not_hold_the_state(tmp_path: Path) -> None:
    """Nor so the loader: its workers would end only when the collector comes by."""
    _, optimizer, engine = job()
    loader = Loader(engine)
    state = TorchState(optimizer=optimizer, loader=loader, epoch=0, checkpoint=tmp_path)
    state.register_reset_callbacks([lambda: None])
    list(state.epochs(0))
    state.save()
    gone = weakref.ref(loader)
    gc.disable()
    try:
        del state, loader
        assert gone() is None
    finally:
        gc.enable()


# Epochs.


def test_epochs_begin_where_the_engine_is() -> None:
    model, optimizer, engine = job()
    engine.epoch = 2
    seen = []
    for epoch in TorchState(model, optimizer).epochs(5):
        seen.append(epoch)
        engine.train_epoch()
    assert seen == [2, 3, 4]
    assert list(TorchState(*job()[:2]).epochs(0)) == []


def test_a_stop_ends_the_epochs() -> None:
    model, optimizer, engine = job()
    state = TorchState(model, optimizer)
    seen = []
    for epoch in state.epochs(9):
        seen.append(epoch)
        engine.train_epoch()
        if epoch == 1:
            state.request_stop()
    assert seen == [0, 1]
    assert (engine.reason, engine.exit_code) == ("the script asked for it", 0)


def test_an_epoch_that_was_not_trained_is_told() -> None:
    model, optimizer, engine = job()
    state = TorchState(model, optimizer)
    epochs = state.epochs(3)
    assert next(epochs) == 0
    with pytest.raises(UsageError, match="epoch 0 came again: nothing was trained in it"):
        next(epochs)
    epochs = state.epochs(3)
    assert next(epochs) == 0
    engine.generation += 1  # set aside in its first window, and back
    assert next(epochs) == 0
    state.save()
    engine.train_epoch()
    state.restore()
    assert next(epochs) == 0


@pytest.mark.parametrize("n", [-1, 1.5, True, "3", None])
def test_numbers_of_epochs(n: Any) -> None:
    model, optimizer, _ = job()
    with pytest.raises(ConfigError, match=r"n must be an integer of at least 0, got "):
        TorchState(model, optimizer).epochs(n)


# Horovod's methods.


def test_commit_and_restore() -> None:
    model, optimizer, engine = job()
    state = TorchState(model, optimizer, epoch=0, history=[])
    with pytest.raises(UsageError, match="nothing to go back to"):
        state.restore()
    state.commit()
    before = digest(engine.capture())
    for turn in range(2):  # what was kept is not used up, and not changed by going on from it
        engine.train_epoch()
        state.epoch = 7
        state.history.append(turn)
        assert digest(engine.capture()) != before
        state.restore()
        assert digest(engine.capture()) == before
        assert (state.epoch, state.history) == (0, [])


def test_commit_ends_a_stopped_script() -> None:
    model, optimizer, engine = job()
    state = TorchState(model, optimizer)
    engine.request_stop("terminated", 143)
    with pytest.raises(SystemExit) as ended:
        state.commit()
    assert ended.value.code == 143


def test_reset_callbacks() -> None:
    model, optimizer, engine = job()
    state = TorchState(model, optimizer)
    called: list[str] = []
    state.register_reset_callbacks([lambda: called.append("a"), lambda: called.append("b")])
    state.register_reset_callbacks([lambda: called.append("c")])
    state.on_reset()
    assert called == ["a", "b", "c"]
    assert len(engine.reset_callbacks) == 3
    with pytest.raises(ConfigError, match="callbacks must be functions without arguments, got 3"):
        state.register_reset_callbacks([3])  # type: ignore[list-item]


def test_what_there_is_no_need_for() -> None:
    model, optimizer, engine = job()
    state = TorchState(model, optimizer)
    before = digest(engine.capture())
    assert state.sync() is None
    assert state.check_host_updates() is None
    assert digest(engine.capture()) == before


def test_importing_the_names_is_light() -> None:
    program = "import sys, elche; print('torch' in sys.modules, dir(elche.elastic))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "False ['TorchState']\n"
