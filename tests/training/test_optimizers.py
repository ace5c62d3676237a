"""Every optimizer of torch.optim, with closures, hooks, schedulers and state dicts, as PyTorch has them."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import training_rig as rig
import torch
from torch import nn
from torch.optim import lr_scheduler

import elche
from elche.errors import ConfigError

REFUSED = {"LBFGS", "SparseAdam"}
ARGUMENTS = {
    "Muon": [{"lr": 0.01}],
    "Adafactor": [{"lr": 0.05}],
    "SGD": [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, {"lr": 0.1, "foreach": True}],
    "Adam": [{"lr": 0.05}, {"lr": 0.05, "amsgrad": True}, {"lr": torch.tensor(0.05)}, {"lr": 0.05, "fused": True}],
}  # fmt: skip
NAMES = [
    name
    for name, value in vars(torch.optim).items()
    if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name != "Optimizer"
]
CASES = [
    (name, arguments)
    for name in sorted(set(NAMES) - REFUSED)
    for arguments in ARGUMENTS.get(name, [{"lr": 0.02}])
]


def matrices():
    """A network of matrices only: Muon takes nothing else."""
    with rig.seeded():
        return nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 1, bias=False))


def sgd(model, **settings):
    return torch.optim.SGD(model.parameters(), lr=0.1, **settings)


def loop(model, optimizer, loader, after=lambda: None):
    """Go through an epoch; call `after` after each step."""
    for batch in loader:
        optimizer.zero_grad()
        rig.squared(model, batch).backward()
        optimizer.step()
        after()


@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_every_optimizer_equals_one_process(monkeypatch, name, arguments):
    rig.fix_counts(monkeypatch, (4, 2, 1))

    def make():
        model = matrices()
        kind = getattr(torch.optim, name)
        return model, kind(model.parameters(), **copy.deepcopy(arguments))

    # Rprop looks at signs, Adam's first steps nearly do: rounding of 1e-7 in a gradient counts more there.
    windows = rig.same_as_one_process(make, rig.samples(84), rtol=1e-4)
    assert len(windows) == 3


@pytest.mark.parametrize("name", sorted(REFUSED))
@pytest.mark.parametrize("subclass", [False, True])
def test_optimizers_that_cannot_be_are_refused_by_name(name, subclass):
    kind = getattr(torch.optim, name)
    if subclass:
        kind = type("Mine", (kind,), {})

    def script(rank):
        model = rig.mlp()
        rig.distribute(model, kind(model.parameters()), rig.samples(4))

    for error in rig.errors(2, script):
        assert isinstance(error, ConfigError)
        assert name in str(error)


def test_the_class_and_its_name_stay():
    def script(rank):
        model = rig.mlp()
        plain = torch.optim.AdamW(model.parameters(), lr=0.1)
        optimizer, _ = rig.distribute(model, plain, rig.samples(4))
        assert optimizer is plain
        assert isinstance(optimizer, torch.optim.AdamW)
        assert type(optimizer).__name__ == "AdamW"
        assert repr(optimizer).startswith("AdamW (")
        assert not hasattr(torch.optim.AdamW, "window")
        assert type(torch.optim.AdamW(model.parameters())) is torch.optim.AdamW

    rig.ranks(2, script)


def test_a_closure_is_evaluated_once_and_its_loss_returned_and_logged(monkeypatch, tmp_path):
    rig.fix_counts(monkeypatch, (2, 1))
    monkeypatch.setenv("ELCHE_LOG", str(tmp_path / "log"))

    def script(rank):
        weight = nn.Parameter(torch.zeros(1))
        data = [torch.tensor([float(i)]) for i in range(6)]
        optimizer, loader = rig.distribute(
            nn.ParameterDict({"w": weight}), torch.optim.SGD([weight], lr=1.0), data, 1
        )
        losses = []
        for x in loader:

            def closure(x=x):
                assert torch.is_grad_enabled()
                optimizer.zero_grad()
                loss = (weight * x).sum() + 10 * x.sum()
                loss.backward()
                losses.append(loss)
                return loss

            with torch.no_grad():
                assert optimizer.step(closure) is losses[-1]
        return weight.item(), len(losses)

    # Spans: rank 0 has 0..3, rank 1 has 4..5; windows (0, 1, 4) and (2, 3, 5); w is 0, then -5/3.
    assert rig.ranks(2, script) == [(pytest.approx(-5 / 3 - 10 / 3), 4), (pytest.approx(-5 / 3 - 10 / 3), 2)]
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if '"window"' in line]
    means = [__import__("json").loads(line)["loss"] for line in lines]
    assert means[0] == pytest.approx(50 / 3)
    assert means[1] == pytest.approx((10 - 5 / 3) * 10 / 3)


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
            from torch.optim.optimizer import (
                register_optimizer_step_post_hook,
                register_optimizer_step_pre_hook,
            )

            handles.append(register_optimizer_step_pre_hook(lambda *_: fired.append("pre")))
            handles.append(register_optimizer_step_post_hook(lambda *_: fired.append("post")))

    def script(rank):
        model = rig.mlp()
        optimizer = sgd(model)
        if before and rank == 1:
            register(optimizer)
        optimizer, loader = rig.distribute(model, optimizer, rig.samples(12), 1)
        if not before and rank == 1:
            register(optimizer)
        for _ in range(2):
            loop(model, optimizer, loader)
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
    """Made before or after wrapping, without PyTorch's warning on the order of calls (warnings are errors)."""
    rig.fix_counts(monkeypatch, (4, 2, 1))
    make, expected = SCHEDULERS[name]

    def script(rank):
        model = rig.mlp()
        optimizer = sgd(model, momentum=0.9)
        scheduler = make(optimizer) if when == "before" else None
        optimizer, loader = rig.distribute(model, optimizer, rig.samples(7), 1)
        scheduler = scheduler or make(optimizer)
        rates = []
        for _ in range(4):
            rates.append(optimizer.param_groups[0]["lr"])
            loop(model, optimizer, loader)
            scheduler.step()
        return rates

    model = rig.mlp()
    plain = sgd(model, momentum=0.9)
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
        optimizer = sgd(model, momentum=0.9)
        scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5) if when == "before" else None
        optimizer, loader = rig.distribute(model, optimizer, rig.samples(12), 1)
        scheduler = scheduler or lr_scheduler.StepLR(optimizer, 1, 0.5)
        loop(model, optimizer, loader, lambda: optimizer.updated and scheduler.step())
        return rig.state_of(model), optimizer.param_groups[0]["lr"], optimizer.num_updates

    outcomes = rig.ranks(2, script)
    model = rig.mlp()
    optimizer = sgd(model, momentum=0.9)
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
    for i in range(4):
        rig.replay(model, optimizer, rig.samples(12), [[(2 * i, 2 * i + 2), (8 + i, 9 + i)]])
        scheduler.step()
    for state, rate, num_updates in outcomes:
        rig.assert_close(state, rig.state_of(model))
        assert (rate, num_updates) == (0.1 / 16, 4)


def test_a_group_that_the_script_holds_goes_on_to_count(monkeypatch):
    """The state of rank 0 is sent before the first window: groups must stay the objects they were."""
    rig.fix_counts(monkeypatch, (1, 1))

    def script(rank):
        model = rig.mlp()
        optimizer = sgd(model)
        group = optimizer.param_groups[0]
        optimizer, loader = rig.distribute(model, optimizer, rig.samples(4), 1)

        def decay():
            group["lr"] *= 0.5

        loop(model, optimizer, loader, decay)
        return rig.state_of(model)

    rig.assert_equal(*rig.ranks(2, script))


def test_state_dict_and_load_state_dict(monkeypatch):
    rig.fix_counts(monkeypatch, (2, 1))
    data = rig.samples(12)

    def train(state, epochs):
        def script(rank):
            model, optimizer = rig.mlp(), None
            optimizer, loader = rig.distribute(model, torch.optim.Adam(model.parameters(), lr=0.05), data, 1)
            if state is not None:
                model.load_state_dict(state[0])
                optimizer.load_state_dict(state[1])
                loader.set_epoch(1)
            for _ in range(epochs):
                loop(model, optimizer, loader)
            return rig.state_of(model), copy.deepcopy(optimizer.state_dict())

        return rig.ranks(2, script)

    whole, half = train(None, 2), train(None, 1)
    resumed = train(half[1], 1)
    rig.assert_equal(whole[0][0], whole[1][0], resumed[0][0], resumed[1][0])
    again = pickle.loads(pickle.dumps(whole[0][1]))
    assert again["param_groups"] == whole[0][1]["param_groups"]
    plain = torch.optim.Adam(rig.mlp().parameters())
    plain.load_state_dict(again)
    assert plain.param_groups[0]["lr"] == 0.05
    assert plain.state_dict()["state"][0]["step"].item() == 8


def test_hyperparameters_of_rank_0_count(monkeypatch):
    rig.fix_counts(monkeypatch, (1, 1))

    def script(rank):
        model = rig.mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1), momentum=0.5 * rank)
        rig.fit(model, optimizer, rig.samples(4), batch_size=1)
        return rig.state_of(model), optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]

    (state, *settings), (state_1, *settings_1) = rig.ranks(2, script)
    rig.assert_equal(state, state_1)
    assert settings == settings_1 == [0.1, 0.0]


def test_groups_with_rates_of_their_own():
    def make():
        model = rig.mlp()
        groups = [{"params": model[0].parameters(), "lr": 0.2}, {"params": model[2].parameters()}]
        return model, torch.optim.SGD(groups, lr=0.05, momentum=0.9)

    rig.same_as_one_process(make, rig.samples(), epochs=2)


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


def test_an_optimizer_without_a_learning_rate(monkeypatch):
    class Halve(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= 0.5 * parameter.grad

    rig.same_as_one_process(lambda: (model := rig.mlp(), Halve(model.parameters())), rig.samples(20))


def test_world_size_1_and_no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rig.same_as_one_process(lambda: (model := rig.mlp(), sgd(model)), rig.samples(), n=1)
    assert not elche.is_initialized()
