"""What a newcomer gets: all of the others' state, or its refusal by name."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import survival_laws as laws
import survival_rig as rig
import survival_scripts as scripts
import torch
from survival_rig import Fault

import elche
from elche.errors import MismatchError
from elche.training import snapshot

CALM = 20.0
LOSS = Fault(1, 4, "batch", "kill")


class Scaler:
    """Has what a GradScaler has: numbers and a tensor, by state_dict."""

    def __init__(self):
        self.scale, self.growth = 1.0, torch.zeros(2)

    def grow(self):
        self.scale *= 2
        self.growth[0] += 1

    def state_dict(self):
        return {"scale": self.scale, "growth": self.growth}

    def load_state_dict(self, state):
        self.scale, self.growth = state["scale"], state["growth"].clone()


def wait_for_spare(spare=2):
    """Let the only survivor wait until the spare knocks."""

    def before_batch(process):
        if process.world.size == 1 and process.number != spare:
            process.rest_until(lambda: process.hears(spare))

    return before_batch


def test_everything_in_a_torch_state_is_equal_on_the_newcomer():
    before_batch = wait_for_spare()

    def script(process):
        model = scripts.network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)  # its state holds numbers, too
        loader = scripts.wrapped(process, model, optimizer)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        scaler, state = Scaler(), None
        state = elche.elastic.TorchState(
            model, optimizer, loader=loader, scheduler=scheduler, scaler=scaler, best=None, history=[]
        )
        for epoch in state.epochs(3):
            scripts.go_through(process, model, loader, before_batch)
            scheduler.step()
            scaler.grow()
            state.best, state.history = 0.5 ** (epoch + 1), [*state.history, epoch]
        assert [group["lr"] for group in optimizer.param_groups] == [0.01 / 8]
        report = scripts.report(process, model, scheduler, scaler)
        report.state += [state.best, state.history]
        return report

    trial = rig.run(3, script, faults=[LOSS], spares=1, stall=CALM)
    laws.check_once(trial, 3)
    assert [report.process for report in trial.members()] == [0, 2]
    laws.check_equal(trial.members())
    scheduler, scaler, num_updates, best, history = trial.members()[1].state[3:]
    assert scheduler["last_epoch"] == 3
    assert (scaler["scale"], best, history) == (8.0, 0.125, [0, 1, 2])
    assert num_updates == len(trial.told("window"))


def test_a_newcomer_at_the_end_of_an_epoch_goes_through_its_end():
    """With a window an epoch everybody enters there: the scripts' schedulers step alike."""

    def before_batch(process):
        if process.world.size == 1 and process.number == 0:
            process.rest_until(lambda: process.hears(2))

    for stateful in (True, False):
        script = scripts.training(8, stateful=stateful, samples=8, before_batch=before_batch)
        trial = rig.run(3, script, faults=[LOSS], spares=1, stall=CALM)
        laws.check(trial, 8, samples=8)
        assert [report.process for report in trial.members()] == [0, 2]


def test_the_dice_are_the_others(monkeypatch):
    taken, given = [], []
    capture, restore = snapshot._random_states, snapshot._set_random_states

    def recorded():
        taken.append(capture())
        return taken[-1]

    def noted(states):
        restore(states)
        given.append(states)

    monkeypatch.setattr(snapshot, "_random_states", recorded)
    monkeypatch.setattr(snapshot, "_set_random_states", noted)
    script = scripts.training(3, before_batch=wait_for_spare())
    laws.check(rig.run(3, script, faults=[LOSS], spares=1, stall=CALM), 3)
    (states,) = given
    assert sorted(states) == ["cuda", "numpy", "python", "torch"]
    assert scripts.plain(states["torch"]) in [scripts.plain(one["torch"]) for one in taken]
    assert states["python"] in [one["python"] for one in taken]
    assert states["numpy"][2] in [one["numpy"][2] for one in taken]


@pytest.mark.parametrize("differs", ["model", "batch size", "objects"])
def test_a_newcomer_that_differs_is_refused_by_name_and_the_others_go_on(differs):
    refused = threading.Event()

    def before_batch(process):
        if process.world.size == 1 and process.window > 4 and not refused.is_set():
            process.rest_until(lambda: process.hears(2) or refused.is_set())

    training = scripts.training(3, before_batch=before_batch)

    def script(process):
        if process.number != 2:
            return training(process)
        try:
            model = scripts.network(width=5 if differs == "model" else 4)
            optimizer = scripts.sgd(model)
            loader = scripts.wrapped(
                process, model, optimizer, batch_size=3 if differs == "batch size" else 2
            )
            more = {"ema": Scaler()} if differs == "objects" else {}
            state = elche.elastic.TorchState(model, optimizer, loader=loader, **more)
            list(state.epochs(3))
        finally:
            refused.set()

    trial = rig.run(3, script, faults=[LOSS], spares=1, stall=CALM)
    error = trial.outcomes[2].error
    assert isinstance(error, MismatchError)
    named = {"model": "1.weight is", "batch size": "batch_size is 2 there and 3 here", "objects": "'ema'"}
    assert named[differs] in str(error)
    assert [report.process for report in trial.members()] == [0]
    laws.check_once(trial, 3)
    laws.check_replay(trial, trial.members()[0])


def test_reset_callbacks_are_called_once_for_each_change():
    called = {process: [] for process in range(4)}
    before_batch = wait_for_spare()

    def script(process):
        model = scripts.network()
        optimizer = scripts.sgd(model)
        loader = scripts.wrapped(process, model, optimizer)
        state = elche.elastic.TorchState(model, optimizer, loader=loader)
        state.register_reset_callbacks([lambda: called[process.number].append(process.world.size)])
        for _ in state.epochs(3):
            scripts.go_through(process, model, loader, before_batch)
        return SimpleNamespace(early=False)

    trial = rig.run(3, script, faults=[LOSS], spares=1, stall=CALM)
    laws.check_once(trial, 3)
    assert called == {0: [1, 2], 1: [], 2: [], 3: []}


@pytest.mark.parametrize("kind", ["kill", "stop"])
@pytest.mark.parametrize(
    "point", ["before all_gather", "before all_reduce", "after all_reduce", "before agree"]
)
def test_compressed_gradients_with_what_they_owe_survive_a_loss(point, kind, monkeypatch):
    scripts.speeds(monkeypatch, 5.0, 5.0, 5.0)

    def script(process):
        model = scripts.network().float()
        optimizer = scripts.sgd(model)
        wire = elche.Compression.fp16.with_error_feedback()
        loader = scripts.wrapped(process, model, optimizer, compression=wire)
        state = elche.elastic.TorchState(model, optimizer, loader=loader)
        for _ in state.epochs(3):
            for x, y in loader:
                optimizer.zero_grad()
                (model(x.float()) - y.float()).square().mean().backward()
                optimizer.step()
        return scripts.report(process, model)

    trial = rig.run(3, script, faults=[Fault(1, 4, point, kind)])
    laws.check_once(trial, 3)
    laws.check_equal(trial.members())
    assert [event["process"] for event in trial.told("lost")] == [1]


@pytest.mark.parametrize(("kind", "spares"), [("kill", 1), ("stop", 0)])
def test_a_newcomer_enters_where_replicas_are_compared(kind, spares, monkeypatch):
    """The others compare theirs between two windows; one that enters there knows nothing of it."""
    scripts.speeds(monkeypatch, 5.0, 5.0, 5.0)

    def script(process):
        model = scripts.network()
        optimizer = scripts.sgd(model)
        cadence = elche.Cadence(resync_every=1)
        loader = scripts.wrapped(process, model, optimizer, samples=96, cadence=cadence)
        state = elche.elastic.TorchState(model, optimizer, loader=loader)
        for _ in state.epochs(4):
            scripts.go_through(process, model, loader, lambda process: before_batch(process))
        return scripts.report(process, model)

    def before_batch(process):
        if process.world.size == 1 and process.engine.job.epoch == 3:
            process.rest_until(lambda: any(process.hears(other) for other in (1, 2)))

    trial = rig.run(2 + spares, script, faults=[Fault(1, 3, "batch", kind)], spares=spares)
    laws.check_once(trial, 4, samples=96)
    laws.check_equal(trial.members())
    assert [(event["process"], event["slot"]) for event in trial.told("joined")] == [(1 + spares, 1)]
    assert trial.events[-1]["generation"] == 2, "a loss and an entry; any trouble would be another view"
