"""GradScaler and autocast: the scale moves once a window, alike on all ranks."""

from __future__ import annotations

import pytest
import torch
import training_rig as rig
from torch import nn

import elche


def scaled_run(monkeypatch, counts, data, *, unscale=False, epochs=1, zero_after=False, **scaler_settings):
    """Train with a scaler; return per rank: weights, and (updated, scale) after every `update()`."""
    rig.fix_counts(monkeypatch, *counts)

    def script(rank):
        weight = nn.Parameter(torch.zeros(2))
        model = nn.ParameterDict({"w": weight})
        optimizer, loader = rig.distribute(model, torch.optim.SGD([weight], lr=1.0), data, 1)
        scaler = torch.amp.GradScaler("cpu", **scaler_settings)
        scales = {}
        for _ in range(epochs):
            for x in loader:
                index = optimizer.window.index
                optimizer.zero_grad()
                scaler.scale((weight * x).sum()).backward()
                if unscale:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                if optimizer.updated or optimizer.window is None or optimizer.window.index > index:
                    scales[index] = (optimizer.updated, scaler.get_scale())
        return weight.detach(), scales

    return rig.ranks(len(counts[0]), script)


@pytest.mark.parametrize("unscale", [False, True])
def test_the_scale_grows_by_windows_and_is_equal(monkeypatch, unscale):
    data = [torch.full((2,), float(i)) for i in range(21)]
    outcomes = scaled_run(
        monkeypatch, [(4, 2, 1)], data, unscale=unscale, epochs=2, init_scale=8.0, growth_interval=2
    )
    expected = {0: 8.0, 1: 16.0, 2: 16.0, 3: 32.0, 4: 32.0, 5: 64.0}
    for weight, scales in outcomes:
        assert {index: scale for index, (_, scale) in scales.items()} == expected
        torch.testing.assert_close(weight, torch.full((2,), -2 * sum(range(21)) / 7))


@pytest.mark.parametrize("unscale", [False, True])
def test_one_bad_batch_halves_every_ranks_scale_once(monkeypatch, unscale):
    data = [torch.full((2,), 1.0) for _ in range(21)]
    data[1] = torch.full((2,), float("inf"))  # rank 0, window 0
    data[20] = torch.full((2,), float("nan"))  # rank 2, window 2
    outcomes = scaled_run(
        monkeypatch, [(4, 2, 1)], data, unscale=unscale, init_scale=8.0, growth_interval=1, growth_factor=4.0
    )
    for weight, scales in outcomes:
        assert scales == {0: (True, 4.0), 1: (True, 16.0), 2: (True, 8.0)}
        torch.testing.assert_close(weight, torch.full((2,), -3.0))


def test_a_window_of_bad_batches_only_is_skipped_by_all(monkeypatch):
    data = [torch.full((2,), float("inf")) for _ in range(3)]
    for weight, scales in scaled_run(monkeypatch, [(2, 1)], data, init_scale=8.0):
        assert scales == {0: (False, 4.0)}
        assert weight.tolist() == [0.0, 0.0]


def test_windows_without_a_batch_move_the_scale_too(monkeypatch):
    """Rank 1 has no batch in every second window: the loader closes it, no `update()` comes."""
    data = [torch.full((2,), float(i)) for i in range(20)]
    outcomes = scaled_run(
        monkeypatch, [(1, 1), (2, 0)], data, epochs=3, init_scale=2.0, growth_interval=1, growth_factor=2.0
    )
    (weight, scales), (weight_1, scales_1) = outcomes
    assert [scale for _, (_, scale) in sorted(scales.items())] == [2.0 ** (i + 2) for i in range(len(scales))]
    assert 0 < len(scales_1) < len(scales)
    assert {index: scales[index] for index in scales_1} == scales_1
    assert torch.equal(weight, weight_1)


@pytest.mark.parametrize("nonfinite", ["skip", "raise", "keep"])
def test_an_overflow_in_half_precision_is_found_and_the_scale_comes_down(monkeypatch, nonfinite):
    """The start scale of 2**16 makes fp16 gradients of 3 infinite; all ranks step down together."""
    rig.fix_counts(monkeypatch, (2, 1))

    def script(rank):
        model = nn.Linear(3, 1, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        data = [torch.full((3,), 3.0)] * 12
        optimizer, loader = rig.distribute(model, optimizer, data, 1, nonfinite=nonfinite)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        scales = []
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(x).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if optimizer.window is None or len(optimizer.window.share) == len(optimizer._engine.open_share()):
                scales.append(scaler.get_scale())
        return scales, model.weight.grad.tolist()

    for scales, grad in rig.ranks(2, script):
        assert scales == [2.0**15, 2.0**14, 2.0**14, 2.0**14]
        assert grad == [[3.0, 3.0, 3.0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_equals_one_process(dtype):
    def make():
        model = rig.mlp()
        return model, torch.optim.SGD(model.parameters(), lr=0.05)

    def loss(model, batch):
        with torch.autocast("cpu", dtype=dtype):
            return rig.squared(model, batch)

    rig.same_as_one_process(make, rig.samples(), loss, epochs=2, rtol=8 * torch.finfo(dtype).eps)


def test_a_disabled_scaler_is_none(monkeypatch):
    data = [torch.full((2,), float(i)) for i in range(6)]
    rig.fix_counts(monkeypatch, (2, 1))

    def script(rank):
        weight = nn.Parameter(torch.zeros(2))
        optimizer, loader = rig.distribute(
            nn.ParameterDict({"w": weight}), torch.optim.SGD([weight], lr=1.0), data, 1
        )
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        for x in loader:
            optimizer.zero_grad()
            scaler.scale((weight * x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        return weight.tolist()

    assert rig.ranks(2, script) == [[-5.0, -5.0]] * 2


def test_a_step_without_update_is_refused_as_pytorch_does(monkeypatch):
    def script(rank):
        weight = nn.Parameter(torch.zeros(2))
        optimizer, loader = rig.distribute(
            nn.ParameterDict({"w": weight}), torch.optim.SGD([weight], lr=1.0), [torch.ones(2)] * 4, 1
        )
        scaler = torch.amp.GradScaler("cpu")
        for x in loader:
            scaler.scale((weight * x).sum()).backward()
            scaler.step(optimizer)

    for error in rig.errors(2, script):
        assert "already been called" in str(error)


def test_a_closure_with_a_scaler_is_refused_as_pytorch_does():
    def script(rank):
        model = rig.mlp()
        optimizer, _ = rig.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), rig.samples(4))
        scaler = torch.amp.GradScaler("cpu")
        with pytest.raises(RuntimeError, match="Closure"):
            scaler.step(optimizer, closure=lambda: None)
        return elche.size()

    assert rig.ranks(2, script) == [2, 2]
