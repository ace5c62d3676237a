"""Gradients that are missing, sparse, huge, tiny, of odd dtypes or strides: always one process's mean."""

from __future__ import annotations

import pytest
import training_rig as rig
import torch
from torch import nn

import elche


def sgd(model, **settings):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, **settings)


class Branches(nn.Module):
    """`left` for the samples with a positive first feature, `right` for others, `never` for none."""

    def __init__(self):
        super().__init__()
        with rig.seeded():
            self.left, self.right, self.never = (nn.Linear(3, 1) for _ in range(3))

    def forward(self, x):
        return self.left(x) if x[0, 0] > 0 else self.right(x)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("counts", [(1, 1, 1), (4, 2, 1), (2, 0, 1)])
def test_a_branch_used_on_some_ranks_only(monkeypatch, counts, set_to_none):
    rig.fix_counts(monkeypatch, counts)
    data = rig.samples()
    data = [(x.abs() if i // 4 % 3 else -x.abs(), y) for i, (x, y) in enumerate(data)]

    def make():
        model = Branches()
        optimizer = sgd(model)
        plain_zero = optimizer.zero_grad
        optimizer.zero_grad = lambda: plain_zero(set_to_none=set_to_none)
        return model, optimizer

    rig.same_as_one_process(make, data, epochs=2)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_a_parameter_without_gradient_on_all_ranks_stays_as_it_is(make):
    def script(rank):
        model = Branches()
        before = rig.state_of(model.never)
        rig.fit(model, make(model.parameters(), lr=0.1, weight_decay=0.5), rig.samples())
        assert model.never.weight.grad is None
        rig.assert_equal(rig.state_of(model.never), before)
        assert not torch.equal(model.left.weight, Branches().left.weight)

    rig.ranks(2, script)


def test_a_gradient_that_only_another_rank_has_is_seen_here(monkeypatch):
    rig.fix_counts(monkeypatch, (1, 1))
    data = [(torch.tensor([sign, 1.0, 1.0]), torch.tensor([1.0])) for sign in (1.0, -1.0)]

    def script(rank):
        model = Branches()
        rig.fit(model, torch.optim.SGD(model.parameters(), lr=0.0), data, batch_size=1)
        return model.left.weight.grad, model.right.weight.grad

    (left, right), (left_1, right_1) = rig.ranks(2, script)
    model = Branches()
    rig.squared(model, (data[0][0][None], data[0][1][None])).backward()
    rig.squared(model, (data[1][0][None], data[1][1][None])).backward()
    torch.testing.assert_close(left, model.left.weight.grad / 2)
    torch.testing.assert_close(right, model.right.weight.grad / 2)
    assert torch.equal(left, left_1)
    assert torch.equal(right, right_1)


@pytest.mark.parametrize("counts", [(1, 1), (3, 0), (0, 2)], ids=str)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_after_step_instead_of_before(monkeypatch, counts, set_to_none):
    """A rank without a batch has its window closed by the loader: no mean may leak into its next batch."""
    rig.fix_counts(monkeypatch, counts, (1, 1))
    data = rig.samples(14)

    def script(rank):
        model = rig.mlp()
        optimizer, loader = rig.distribute(model, sgd(model), data, batch_size=2)
        windows = {}
        for _ in range(3):
            for batch in loader:
                windows[optimizer.window.index] = optimizer.window.ranges
                rig.squared(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=set_to_none)
        return rig.state_of(model), windows

    (state, windows), (state_1, windows_1) = rig.ranks(2, script)
    model = rig.mlp()
    rig.replay(model, sgd(model), data, rig.merged([windows, windows_1]))
    rig.assert_equal(state, state_1)
    rig.assert_close(state, rig.state_of(model))


def test_sparse_gradients_average_as_dense_ones():
    def make():
        with rig.seeded():
            model = nn.Sequential(nn.Embedding(11, 3, sparse=True), nn.Flatten(), nn.Linear(6, 1))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    ids = torch.arange(53).mul(7) % 11
    data = [(torch.stack([i, (i + 3) % 11]), i.float().view(1)) for i in ids]
    rig.same_as_one_process(make, data, epochs=2)


def test_sparse_gradients_of_one_rank_only(monkeypatch):
    rig.fix_counts(monkeypatch, (2, 0, 1))

    def script(rank):
        model = nn.Embedding(5, 2, sparse=True)
        nn.init.ones_(model.weight)
        data = [torch.tensor([0]), torch.tensor([0]), torch.tensor([3])]
        rig.fit(
            model, torch.optim.SGD(model.parameters(), lr=1.0), data, lambda m, x: m(x).sum(), batch_size=1
        )
        return model.weight.detach()

    for weight in rig.ranks(3, script):
        expected = torch.ones(5, 2)
        expected[0] -= 2 / 3
        expected[3] -= 1 / 3
        torch.testing.assert_close(weight, expected)


@pytest.mark.parametrize("value", [3e4, 1e-7])
def test_half_precision_sums_neither_overflow_nor_flush(monkeypatch, value):
    rig.fix_counts(monkeypatch, (3, 3, 3, 3))

    def script(rank):
        weight = nn.Parameter(torch.zeros(5, dtype=torch.float16))
        model = nn.ParameterDict({"w": weight})
        data = [torch.full((5,), value, dtype=torch.float16)] * 24
        rig.fit(
            model,
            torch.optim.SGD([weight], lr=0.0),
            data,
            lambda m, x: (m["w"] * x).sum(),
            batch_size=1,
        )
        return weight.grad

    for grad in rig.ranks(4, script):
        assert torch.equal(grad, torch.full((5,), value, dtype=torch.float16))


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
    data = [(torch.randn(2, 4, 4, generator=generator), torch.randn(1, generator=generator)) for _ in range(20)]
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
        optimizer, loader = rig.distribute(model, sgd(model), data)

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
    optimizer = sgd(model)
    train(model, optimizer, 3, lambda epoch: rig.replay(model, optimizer, data, [[(0, 4), (4, 8), (8, 12)]]))
    rig.assert_equal(*states)
    rig.assert_close(states[0], rig.state_of(model))


def test_shared_parameters():
    def make():
        with rig.seeded():
            model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 1))
        model[2].weight = model[0].weight
        return model, sgd(model)

    rig.same_as_one_process(make, rig.samples())


def test_gradients_with_a_graph_of_their_own():
    def script(rank):
        model = rig.mlp()
        optimizer, loader = rig.distribute(model, sgd(model), rig.samples(8))
        for batch in loader:
            optimizer.zero_grad()
            loss, parameters = rig.squared(model, batch), [*model.parameters()]
            grads = torch.autograd.grad(loss, parameters, create_graph=True)
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter.grad = grad
            optimizer.step()
        return rig.state_of(model)

    def make():
        model = rig.mlp()
        return model, sgd(model)

    windows = [[(0, 4), (4, 8)]]
    model, optimizer = make()
    rig.replay(model, optimizer, rig.samples(8), windows)
    for state in rig.ranks(2, script):
        rig.assert_close(state, rig.state_of(model))


def test_clipping_is_of_the_mean_gradient(monkeypatch):
    rig.fix_counts(monkeypatch, (2, 1))

    def script(rank):
        weight = nn.Parameter(torch.zeros(2))
        data = [torch.tensor([3.0, 0.0]), torch.tensor([3.0, 6.0]), torch.tensor([3.0, 6.0])]  # mean 3, 4
        rig.fit(
            nn.ParameterDict({"w": weight}),
            torch.optim.SGD([weight], lr=1.0),
            data,
            lambda m, x: (m["w"] * x).sum(),
            batch_size=1,
            max_grad_norm=0.5,
        )
        return weight.detach()

    for weight in rig.ranks(2, script):
        torch.testing.assert_close(weight, torch.tensor([-0.3, -0.4]), rtol=1e-5, atol=0)


def test_a_model_without_parameters_is_refused():
    def script(rank):
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        optimizer.param_groups[0]["params"] = []
        rig.distribute(nn.Identity(), optimizer, rig.samples(4))

    for error in rig.errors(2, script):
        assert isinstance(error, elche.errors.ConfigError)
        assert "0 parameters, at least 1" in str(error)
