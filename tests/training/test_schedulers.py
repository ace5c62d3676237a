"""Schedulers and step hooks: made before or after wrapping, they see updates as in one process."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import training_rig as rig
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("registry", ["own", "global"])
def test_step_hooks_fire_once_an_update(monkeypatch, before, registry):
    rig.fix_counts(monkeypatch, (2, 1))
    fired = []
    handles = []

    def register(optimizer):
        if registry == "own":
            optimizer.register_step_pre_hook(lambda *_: fired.append("pre"))
            optimizer.register_step_post_hook(lambda *_: fired.append("post"))
        else:
            handles.append(register_optimizer_step_pre_hook(lambda *_: fired.append("pre")))
            handles.append(register_optimizer_step_post_hook(lambda *_: fired.append("post")))

    def script(rank):
        model = rig.mlp()
        optimizer = rig.sgd(model)
        if before and rank == 1:
            register(optimizer)
        optimizer, loader = rig.distribute(model, optimizer, rig.samples(12), 1)
        if not before and rank == 1:
            register(optimizer)
        for _ in range(2):
            rig.loop(model, optimizer, loader)
        return optimizer.num_updates

    try:
        assert rig.ranks(2, script) == [8, 8]
    finally:
        for handle in handles:
            handle.remove()
    own = ["pre", "post"] * 8
    assert sorted(fired) == sorted(own * (1 if registry == "own" else 2))
    if registry == "own":
        assert fired == own


SCHEDULERS = {
    "StepLR": (lambda o: lr_scheduler.StepLR(o, 1, 0.5), [0.1, 0.05, 0.025, 0.0125]),
    "LambdaLR": (lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n)), [0.1, 0.05, 0.1 / 3, 0.025]),
    "OneCycleLR": (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9), None),
    "CyclicLR": (lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.3, step_size_up=2), [0.1, 0.2, 0.3, 0.2]),
    "SequentialLR": (
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.ConstantLR(o, 0.5, 9), lr_scheduler.ConstantLR(o, 0.25, 9)], [2]
        ),
        [0.05, 0.05, 0.025, 0.025],
    ),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_per_epoch(monkeypatch, name, when):
    """Made before or after wrapping, without PyTorch's warning on the order of calls."""
    rig.fix_counts(monkeypatch, (4, 2, 1))
    make, expected = SCHEDULERS[name]

    def script(rank):
        model = rig.mlp()
        optimizer = rig.sgd(model, momentum=0.9)
        scheduler = make(optimizer) if when == "before" else None
        optimizer, loader = rig.distribute(model, optimizer, rig.samples(7), 1)
        scheduler = scheduler or make(optimizer)
        rates = []
        for _ in range(4):
            rates.append(optimizer.param_groups[0]["lr"])
            rig.loop(model, optimizer, loader)
            scheduler.step()
        return rates

    model = rig.mlp()
    plain = rig.sgd(model, momentum=0.9)
    scheduler, own = make(plain), []
    for _ in range(4):
        own.append(plain.param_groups[0]["lr"])
        plain.step()
        scheduler.step()
    assert expected is None or own == pytest.approx(expected)
    assert rig.ranks(3, script) == [own] * 3


@pytest.mark.parametrize("when", ["before", "after"])
def test_schedulers_per_update_equal_one_process(monkeypatch, when):
    rig.fix_counts(monkeypatch, (2, 1))

    def script(rank):
        model = rig.mlp()
        optimizer = rig.sgd(model, momentum=0.9)
        scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5) if when == "before" else None
        optimizer, loader = rig.distribute(model, optimizer, rig.samples(12), 1)
        scheduler = scheduler or lr_scheduler.StepLR(optimizer, 1, 0.5)
        rig.loop(model, optimizer, loader, lambda: optimizer.updated and scheduler.step())
        return rig.state_of(model), optimizer.param_groups[0]["lr"], optimizer.num_updates

    outcomes = rig.ranks(2, script)
    model = rig.mlp()
    optimizer = rig.sgd(model, momentum=0.9)
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
    for i in range(4):
        rig.replay(model, optimizer, rig.samples(12), [[(2 * i, 2 * i + 2), (8 + i, 9 + i)]])
        scheduler.step()
    for state, rate, num_updates in outcomes:
        rig.assert_close(state, rig.state_of(model))
        assert (rate, num_updates) == (0.1 / 16, 4)


def test_lr_scaling_is_for_the_update_only(monkeypatch):
    rig.fix_counts(monkeypatch, (3, 1))

    def script(rank):
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        data = [torch.ones(1)] * 6
        loss = lambda m, x: (m["w"] * x).sum()  # noqa: E731
        model = nn.ParameterDict({"w": weight})
        rig.fit(model, optimizer, data, loss, batch_size=1, lr_scaling="linear", lr_reference_samples=2)
        return weight.item(), optimizer.param_groups[0]["lr"]

    assert rig.ranks(2, script) == [(-3.0, 1.0)] * 2  # windows of 4 and 2 samples: -2, -1


def test_lr_scaling_leaves_a_scheduler_in_a_hook_the_plain_rate(monkeypatch):
    rig.fix_counts(monkeypatch, (3, 1))

    def script(rank):
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
        optimizer.register_step_post_hook(lambda *_: scheduler.step())
        loss = lambda m, x: (m["w"] * x).sum()  # noqa: E731
        settings = {"batch_size": 1, "lr_scaling": "linear", "lr_reference_samples": 2}
        rig.fit(nn.ParameterDict({"w": weight}), optimizer, [torch.ones(1)] * 6, loss, **settings)
        return weight.item(), optimizer.param_groups[0]["lr"]

    assert rig.ranks(2, script) == [(-2.5, 0.25)] * 2  # windows of 4 and 2 samples: -1 * 2, -0.5 * 1


@pytest.mark.parametrize("counts", [(2, 1), (3, 0), (0, 2)], ids=str)
def test_a_step_hook_sees_the_updates_of_windows_without_a_batch_here(monkeypatch, counts):
    """The loader closes those: `optimizer.updated` never tells of them, a hook does."""
    rig.fix_counts(monkeypatch, counts, (1, 1))
    data = rig.samples(14)

    def hooked(model, optimizer):
        scheduler = lr_scheduler.StepLR(optimizer, 1, 0.8)
        optimizer.register_step_post_hook(lambda *_: scheduler.step())
        return model, optimizer

    def script(rank):
        model = rig.mlp()
        model, optimizer = hooked(model, rig.sgd(model))
        return rig.fit(model, optimizer, data, epochs=2, batch_size=1), rig.state_of(model)

    (windows, state), (windows_1, state_1) = rig.ranks(2, script)
    model = rig.mlp()
    model, optimizer = hooked(model, rig.sgd(model))
    rig.replay(model, optimizer, data, rig.merged([windows, windows_1]))
    rig.assert_equal(state, state_1)
    rig.assert_close(state, rig.state_of(model))


@pytest.mark.parametrize("counts", [[(2, 1)], [(3, 0), (1, 1)], [(1, 0), (0, 1)]], ids=str)
@pytest.mark.parametrize("tensor", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("name", ["StepLR", "LambdaLR"])
def test_updates_that_step_does_not_tell_of(monkeypatch, counts, tensor, name):
    """`if optimizer.updated: scheduler.step()`, where a rank has no batch in some windows.

    Where no rank has one in every window, nobody's scheduler has seen every update: equal, but not exact, and
    warned of. A step hook is exact.
    """
    rig.fix_counts(monkeypatch, *counts)
    data = rig.samples(14)

    def make():
        model = rig.mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1) if tensor else 0.1)
        return model, optimizer, SCHEDULERS[name][0](optimizer)

    def script(rank):
        model, optimizer, scheduler = make()
        optimizer, loader = rig.distribute(model, optimizer, data, 1)
        windows = {}
        for _ in range(2):
            for batch in loader:
                windows[optimizer.window.index] = optimizer.window.ranges
                optimizer.zero_grad()
                rig.squared(model, batch).backward()
                optimizer.step()
                if optimizer.updated:
                    scheduler.step()
        return windows, rig.state_of(model)

    warned = pytest.warns(RuntimeWarning, match="differ between ranks") if (0, 1) in counts else nullcontext()
    with warned:
        (windows, state), (windows_1, state_1) = rig.ranks(2, script)
    model, optimizer, scheduler = make()
    for window in rig.merged([windows, windows_1]):
        rig.replay(model, optimizer, data, [window])
        scheduler.step()
    rig.assert_equal(state, state_1)
    if counts != [(1, 0), (0, 1)]:
        rig.assert_close(state, rig.state_of(model))
