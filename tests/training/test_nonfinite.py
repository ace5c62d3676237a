"""A batch with inf or nan: left out, raised everywhere, or kept, as `Cadence(nonfinite=...)` says."""

from __future__ import annotations

import json

import pytest
import torch
import training_rig as rig
from torch import nn

from elche.errors import NonFiniteError

BAD = [float("inf"), float("-inf"), float("nan")]


def line_up(values, dtype=torch.float32):
    """One sample a value; its gradient is that value."""
    return [torch.full((2,), value, dtype=dtype) for value in values]


def descend(rank, data, dtype=torch.float32, **cadence):
    """Train a parameter whose gradient is the sample, at learning rate 1; return it."""
    weight = nn.Parameter(torch.zeros(2, dtype=dtype))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    loss = lambda m, x: (m["w"] * x).sum()  # noqa: E731
    rig.fit(nn.ParameterDict({"w": weight}), optimizer, data, loss, batch_size=1, **cadence)
    return weight.detach()


LEFT_OUT = pytest.mark.filterwarnings("ignore:batches with inf or nan:RuntimeWarning")


@LEFT_OUT
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_skip_leaves_the_batch_out(monkeypatch, bad, dtype):
    rig.fix_counts(monkeypatch, (2, 1))
    for weight in rig.ranks(2, descend, line_up([2.0, bad, 6.0], dtype), dtype):
        assert weight.tolist() == [-4.0, -4.0]  # (2 + 6) / 2


@LEFT_OUT
def test_skip_as_the_first_batch_of_a_window_leaves_nothing_of_the_last_one(monkeypatch):
    rig.fix_counts(monkeypatch, (1, 2))
    data = line_up([1.0, 100.0, 2.0, 3.0, float("nan"), 5.0])
    # Spans: rank 0 has samples 0..1, rank 1 has 2..5.
    for weight in rig.ranks(2, descend, data):
        assert weight.tolist() == pytest.approx([-(1 + 2 + 3) / 3 - (100 + 5) / 2] * 2)


@LEFT_OUT
def test_skip_of_all_batches_is_no_update():
    def script(rank):
        weight = nn.Parameter(torch.ones(2))
        model, optimizer = (
            nn.ParameterDict({"w": weight}),
            torch.optim.SGD([weight], lr=1.0, weight_decay=0.5),
        )
        optimizer, loader = rig.distribute(model, optimizer, line_up(BAD), 1)
        for x in loader:
            optimizer.zero_grad()
            (weight * x).sum().backward()
            optimizer.step()
            assert not optimizer.updated
        return optimizer.num_updates, weight.tolist()

    assert rig.ranks(2, script) == [(0, [1.0, 1.0])] * 2


@LEFT_OUT
def test_skip_is_counted_in_the_log(monkeypatch, tmp_path):
    rig.fix_counts(monkeypatch, (2, 1))
    monkeypatch.setenv("ELCHE_LOG", str(tmp_path / "log"))
    rig.ranks(2, descend, line_up([1.0, float("nan"), 3.0, float("inf"), float("inf"), 6.0]))
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    windows = [event for event in events if event["event"] == "window"]
    # Spans: rank 0 has samples 0..3, rank 1 has 4..5.
    assert [window["skipped"] for window in windows] == [[1, 1], [1, 0]]
    assert [window["weight_total"] for window in windows] == [1.0, 2.0]
    assert [window["samples"] for window in windows] == [[2, 1], [2, 1]]


def test_skip_warns_on_one_rank(monkeypatch):
    rig.fix_counts(monkeypatch, (2, 1))
    with pytest.warns(RuntimeWarning, match=r"left out .* by rank: \[1, 0\]") as caught:
        rig.ranks(2, descend, line_up([2.0, float("nan"), 6.0]))
    assert len(caught) == 1


@LEFT_OUT
@pytest.mark.parametrize("bad", BAD)
def test_keep_keeps_it(monkeypatch, bad):
    rig.fix_counts(monkeypatch, (1, 1))
    for weight in rig.ranks(2, descend, line_up([1.0, bad]), torch.float32):
        assert weight.isfinite().all()  # skipped by default

    def script(rank):
        return descend(rank, line_up([1.0, bad]), nonfinite="keep")

    for weight in rig.ranks(2, script):
        assert not weight.isfinite().any()


@pytest.mark.parametrize("bad", BAD)
def test_raise_names_parameter_and_rank_on_all_ranks(monkeypatch, bad):
    rig.fix_counts(monkeypatch, (1, 2, 1))

    def script(rank):
        descend(rank, line_up([1.0, 2.0, bad, 4.0]), nonfinite="raise")

    for error in rig.errors(3, script):
        assert isinstance(error, NonFiniteError)
        assert "gradients of w" in str(error)
        assert "rank 1" in str(error)
        assert "samples 2..3" in str(error)


def test_raise_on_two_ranks_names_both(monkeypatch):
    rig.fix_counts(monkeypatch, (1, 1, 1))

    def script(rank):
        descend(rank, line_up([BAD[0], 2.0, BAD[2]]), nonfinite="raise")

    for error in rig.errors(3, script):
        assert "rank 0" in str(error)
        assert "rank 2" in str(error)
        assert "rank 1:" not in str(error)


def test_a_gradient_of_zeros_beside_an_infinite_weighted_one_stays_zero(monkeypatch):
    """Weight 0 times inf is 0 here, not nan."""
    rig.fix_counts(monkeypatch, (1, 1))

    def script(rank):
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        rig.fit(
            nn.ParameterDict({"w": weight}),
            optimizer,
            line_up([3.0, BAD[0]]),
            lambda m, x: (m["w"] * x).mean(),
            batch_size=1,
            nonfinite="keep",
            weight=lambda x: float(x.isfinite().all()),
        )
        return weight.item()

    assert rig.ranks(2, script) == [-3.0, -3.0]


def test_losses_that_are_not_finite_are_not_in_the_mean_loss(monkeypatch, tmp_path):
    rig.fix_counts(monkeypatch, (1, 1))
    monkeypatch.setenv("ELCHE_LOG", str(tmp_path / "log"))

    def script(rank):
        model = rig.mlp()
        optimizer, loader = rig.distribute(
            model, torch.optim.SGD(model.parameters(), lr=0.1), rig.samples(4), 1
        )
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            rig.squared(model, batch).backward()
            optimizer.report_loss(float("nan") if rank else torch.tensor(2.5 + number))
            optimizer.step()

    rig.ranks(2, script)
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [event["loss"] for event in events if event["event"] == "window"] == [2.5, 3.5]
