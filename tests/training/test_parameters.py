"""Parameters of odd dtypes, strides and kinds, frozen, shared: always what one process does."""

from __future__ import annotations

import pytest
import torch
import training_rig as rig
from torch import nn

import elche

TOLERANCE = {torch.float64: 1e-12, torch.complex64: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_parameters_of_every_dtype(dtype):
    def make():
        model = rig.mlp().to(dtype)
        return model, torch.optim.SGD(model.parameters(), lr=0.05)

    def loss(model, batch):
        x, y = batch
        return (model(x) - y).abs().square().mean()

    data = rig.samples(dtype=torch.float64 if dtype is torch.complex64 else dtype)
    if dtype is torch.complex64:
        data = [(torch.complex(x, x.flip(0)).to(dtype), torch.complex(y, -y).to(dtype)) for x, y in data]
    rig.same_as_one_process(make, data, loss, rtol=TOLERANCE[dtype])


def test_parameters_of_several_dtypes_in_one_model():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))
            self.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))
            self.shift = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
            self.empty = nn.Parameter(torch.empty(0))
            self.point = nn.Parameter(torch.tensor(0.5))

        def forward(self, x):
            z = (x * self.phase).sum(1, keepdim=True)
            return (z.real + z.imag) * self.scale + self.shift * self.point + self.empty.sum()

    def make():
        model = Mixed()
        return model, torch.optim.SGD(model.parameters(), lr=0.02)

    rig.same_as_one_process(make, rig.samples(), rtol=1e-2)


def strided_conv():
    with rig.seeded():
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 1))
    model[0].to(memory_format=torch.channels_last)
    model[3].weight = nn.Parameter(model[3].weight.detach().reshape(16, 1).t())
    return model


def test_strides_of_parameters_and_gradients_are_kept():
    generator = torch.Generator().manual_seed(1)
    data = [
        (torch.randn(2, 4, 4, generator=generator), torch.randn(1, generator=generator)) for _ in range(20)
    ]
    strides = [(18, 1, 6, 2), (1,), (1, 1), (1,)]

    def make():
        model = strided_conv()
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    rig.same_as_one_process(make, data, rtol=1e-5)

    def script(rank):
        model, optimizer = make()
        rig.fit(model, optimizer, data)
        assert [p.stride() for p in model.parameters()] == strides
        assert [p.grad.stride() for p in model.parameters()] == strides

    rig.ranks(2, script)


def test_a_transposed_parameter_has_the_right_values(monkeypatch):
    """The gradient comes in another memory order than the parameter's."""
    rig.fix_counts(monkeypatch, (1, 1))
    target = torch.arange(6.0).view(2, 3)

    def script(rank):
        weight = nn.Parameter(torch.zeros(3, 2).t())
        model = nn.ParameterDict({"w": weight})
        data = [target, 3 * target]
        loss = lambda m, x: (m["w"] * x[0]).sum()  # noqa: E731
        rig.fit(model, torch.optim.SGD([weight], lr=1.0), data, loss, batch_size=1)
        return weight.detach(), weight.stride(), weight.grad.stride()

    for weight, *strides in rig.ranks(2, script):
        assert torch.equal(weight, -2 * target)
        assert strides == [(1, 2), (1, 2)]


def test_a_parameter_that_is_a_view_with_gaps(monkeypatch):
    rig.fix_counts(monkeypatch, (1, 2))
    whole = torch.zeros(4, 6)

    def script(rank):
        weight = nn.Parameter(whole.clone()[:, ::2])
        model = nn.ParameterDict({"w": weight})
        data = [torch.full((4, 3), float(i)) for i in range(3)]
        loss = lambda m, x: (m["w"] * x[0]).sum()  # noqa: E731
        rig.fit(model, torch.optim.SGD([weight], lr=1.0), data, loss, batch_size=1)
        return weight.detach()

    for weight in rig.ranks(2, script):
        assert torch.equal(weight, torch.full((4, 3), -1.0))


def test_parameters_frozen_and_unfrozen_between_windows(monkeypatch):
    rig.fix_counts(monkeypatch, (2, 1))
    data = rig.samples(12)

    def train(model, optimizer, epochs, step):
        for epoch in range(epochs):
            model[0].weight.requires_grad_(epoch != 1)
            step(epoch)

    def script(rank):
        model = rig.mlp()
        model[2].bias.requires_grad_(False)
        optimizer, loader = rig.distribute(model, rig.sgd(model), data)

        def epoch(number):
            for batch in loader:
                optimizer.zero_grad()
                rig.squared(model, batch).backward()
                optimizer.step()

        train(model, optimizer, 3, epoch)
        return rig.state_of(model)

    states = rig.ranks(2, script)
    model = rig.mlp()
    model[2].bias.requires_grad_(False)
    optimizer = rig.sgd(model)
    train(model, optimizer, 3, lambda epoch: rig.replay(model, optimizer, data, [[(0, 4), (4, 8), (8, 12)]]))
    rig.assert_equal(*states)
    rig.assert_close(states[0], rig.state_of(model))


def test_shared_parameters():
    def make():
        with rig.seeded():
            model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 1))
        model[2].weight = model[0].weight
        return model, rig.sgd(model)

    rig.same_as_one_process(make, rig.samples())


def test_a_model_without_parameters_is_refused():
    def script(rank):
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        optimizer.param_groups[0]["params"] = []
        rig.distribute(nn.Identity(), optimizer, rig.samples(4))

    for error in rig.errors(2, script):
        assert isinstance(error, elche.errors.ConfigError)
        assert "0 parameters, at least 1" in str(error)
