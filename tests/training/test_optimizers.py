"""Every optimizer of torch.optim, with closures, hooks, schedulers and state dicts, as PyTorch has them."""

from __future__ import annotations

import copy
import json
import pickle
import warnings

import pytest
import torch
import training_rig as rig
from torch import nn

import elche
from elche.errors import ConfigError

REFUSED = {"LBFGS", "SparseAdam"}
ARGUMENTS = {
    "Muon": [{"lr": 0.01}],
    "Adafactor": [{"lr": 0.05}],
    "SGD": [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9, "nesterov": True}, {"lr": 0.1, "foreach": True}],
    "Adam": [{"lr": 0.05, "amsgrad": True}, {"lr": torch.tensor(0.05)}, {"lr": 0.05, "fused": True}],
}
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
    means = [json.loads(line)["loss"] for line in lines]
    assert means[0] == pytest.approx(50 / 3)
    assert means[1] == pytest.approx((10 - 5 / 3) * 10 / 3)


def test_a_group_that_the_script_holds_goes_on_to_count(monkeypatch):
    """The state of rank 0 is sent before the first window: groups must stay the objects they were."""
    rig.fix_counts(monkeypatch, (1, 1))

    def script(rank):
        model = rig.mlp()
        optimizer = rig.sgd(model)
        group = optimizer.param_groups[0]
        optimizer, loader = rig.distribute(model, optimizer, rig.samples(4), 1)

        def decay():
            group["lr"] *= 0.5

        rig.loop(model, optimizer, loader, decay)
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
                rig.loop(model, optimizer, loader)
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
        rig.same_as_one_process(lambda: (model := rig.mlp(), rig.sgd(model)), rig.samples(), n=1)
    assert not elche.is_initialized()
