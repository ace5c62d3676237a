"""Gradients that are missing, sparse, huge, tiny, of odd dtypes or strides: always one process's mean."""

from __future__ import annotations

import pytest
import torch
import training_rig as rig
from torch import nn


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
        optimizer = rig.sgd(model)
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
        optimizer, loader = rig.distribute(model, rig.sgd(model), data, batch_size=2)
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
    rig.replay(model, rig.sgd(model), data, rig.merged([windows, windows_1]))
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


def test_gradients_with_a_graph_of_their_own():
    def script(rank):
        model = rig.mlp()
        optimizer, loader = rig.distribute(model, rig.sgd(model), rig.samples(8))
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
        return model, rig.sgd(model)

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
