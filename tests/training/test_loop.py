"""Loops that are not as they should be, and odd numbers of batches: errors on all ranks, never a hang."""

from __future__ import annotations

import math
import threading

import pytest
import torch
import training_rig as rig

import elche
from elche.errors import ConfigError, DeadlineError, RankError, UsageError


def start(n=8, batch_size=1, **cadence):
    model = rig.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer, loader = rig.distribute(model, optimizer, rig.samples(n), batch_size, **cadence)
    return model, optimizer, loader


def backward(model, optimizer, batch):
    optimizer.zero_grad()
    rig.squared(model, batch).backward()


def everywhere(caught, who, kind, text):
    """The rank `who` raised `kind`, and the others heard of it by rank and text; None: all raised it."""
    for rank, error in enumerate(caught):
        assert text in str(error)
        if who is None or rank == who:
            assert isinstance(error, (kind, RankError))
        else:
            assert isinstance(error, RankError)
            assert f"rank {who}" in str(error)


@pytest.mark.parametrize("who", [0, 1, None])
def test_step_twice_for_a_batch(who):
    def script(rank):
        model, optimizer, loader = start()
        for batch in loader:
            backward(model, optimizer, batch)
            optimizer.step()
            if who is None or rank == who:
                optimizer.step()

    everywhere(rig.errors(2, script), who, UsageError, "step() without a batch")


@pytest.mark.parametrize("who", [0, 1, None])
def test_a_batch_without_step(who):
    def script(rank):
        model, optimizer, loader = start()
        for number, batch in enumerate(loader):
            backward(model, optimizer, batch)
            if number != 1 or who not in (None, rank):
                optimizer.step()

    everywhere(rig.errors(2, script), who, UsageError, "step() was not called for the batch of samples")


@pytest.mark.parametrize("who", [0, 1, None])
def test_step_before_the_loop(who):
    def script(rank):
        model, optimizer, loader = start()
        if who is None or rank == who:
            optimizer.step()
        rig.loop(model, optimizer, loader)

    everywhere(rig.errors(2, script), who, UsageError, "step() without a batch")


@pytest.mark.parametrize("who", [0, 1, None])
def test_break_in_mid_epoch(who):
    def script(rank):
        model, optimizer, loader = start()
        for _ in range(2):
            for batch in loader:
                backward(model, optimizer, batch)
                optimizer.step()
                if who is None or rank == who:
                    break

    everywhere(rig.errors(2, script), who, UsageError, "run to its end")


def test_break_after_the_last_batch_is_fine(monkeypatch):
    rig.fix_counts(monkeypatch, (2, 2))

    def script(rank):
        model, optimizer, loader = start()
        for _ in range(3):
            for number, batch in enumerate(loader):
                backward(model, optimizer, batch)
                optimizer.step()
                if number == 3:
                    break
        return rig.state_of(model), optimizer.num_updates, loader.epoch

    (state, *counts), (state_1, *counts_1) = rig.ranks(2, script)
    rig.assert_equal(state, state_1)
    assert counts == counts_1 == [6, 3]


def test_the_same_error_again_and_no_hang_after_it():
    def script(rank):
        model, optimizer, loader = start()

        def wrong():
            for batch in loader:
                backward(model, optimizer, batch)
                optimizer.step()
                if rank == 0:
                    optimizer.step()

        with pytest.raises((UsageError, RankError)) as first:
            wrong()
        for again in (optimizer.step, lambda: next(iter(loader))):
            with pytest.raises((UsageError, RankError)) as caught:
                again()
            assert str(caught.value) == str(first.value)

    rig.ranks(2, script)


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("who", [0, 1, None])
def test_a_weight_function_that_is_wrong(weight, who):
    def script(rank):
        model, optimizer, loader = start(weight=lambda batch: weight if who in (None, rank) else 1.0)
        for batch in loader:
            backward(model, optimizer, batch)
            optimizer.step()

    caught = rig.errors(2, script)
    everywhere(caught, who, ConfigError, "finite and at least 0")
    assert all(str(weight) in str(error) for error in caught)


def test_a_weight_function_counts_what_it_says(monkeypatch):
    rig.fix_counts(monkeypatch, (2, 1))

    def script(rank):
        weight = torch.nn.Parameter(torch.zeros(1))
        data = [torch.tensor([float(i)]) for i in range(3)]
        optimizer = torch.optim.SGD([weight], lr=1.0)
        model = torch.nn.ParameterDict({"w": weight})
        loss = lambda m, x: (m["w"] * x).sum()  # noqa: E731
        rig.fit(model, optimizer, data, loss, batch_size=1, weight=lambda x: 10 * x[0, 0])
        return weight.item()

    assert rig.ranks(2, script) == [pytest.approx(-(10 * 1 + 20 * 2) / 30)] * 2


def test_ten_batches_against_seven_in_a_window(monkeypatch):
    rig.fix_counts(monkeypatch, (10, 7))

    def make():
        model = rig.mlp()
        return model, torch.optim.SGD(model.parameters(), lr=0.05)

    windows = rig.same_as_one_process(make, rig.samples(34), n=2, batch_size=1)
    assert [len(window) for window in windows] == [17, 17]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_more_ranks_than_batches(n):
    """4 ranks with 4 to 7 samples in batches of 4: one or two batches."""

    def make():
        model = rig.mlp()
        return model, torch.optim.SGD(model.parameters(), lr=0.05)

    windows = rig.same_as_one_process(make, rig.samples(max(4, n)), n=4, epochs=3)
    assert len(windows) == 3


@pytest.mark.parametrize("batch_size", [5, 6, 1000])
def test_a_batch_size_of_the_dataset_and_above(batch_size):
    def make():
        model = rig.mlp()
        return model, torch.optim.SGD(model.parameters(), lr=0.05)

    windows = rig.same_as_one_process(make, rig.samples(5), n=2, batch_size=batch_size, epochs=2)
    assert windows == [[(0, 5)]] * 2


@pytest.mark.parametrize("n", [1, 2])
def test_a_dataset_smaller_than_the_world(n):
    for error in rig.errors(3, lambda rank: start(n)):
        assert isinstance(error, ConfigError)
        assert f"at least 3, got {n}" in str(error)


def test_a_dataset_of_one_sample_a_rank():
    def make():
        model = rig.mlp()
        return model, torch.optim.SGD(model.parameters(), lr=0.05)

    rig.same_as_one_process(make, rig.samples(3), batch_size=1, epochs=3)


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_never_comes(monkeypatch, late):
    monkeypatch.setenv("ELCHE_STALL_SECONDS", "0.5")
    over = threading.Event()

    def script(rank):
        model, optimizer, loader = start()
        try:
            for batch in loader:
                backward(model, optimizer, batch)
                if rank == late:
                    assert over.wait(10)
                optimizer.step()
        finally:
            over.set()

    caught = rig.errors(2, script)
    assert isinstance(caught[1 - late], DeadlineError)
    assert "0.5 s" in str(caught[1 - late])


def test_an_exception_of_the_script_ends_the_others_wait():
    def script(rank):
        model, optimizer, loader = start()
        for batch in loader:
            backward(model, optimizer, batch)
            if rank == 1:
                raise KeyError("of the script")
            optimizer.step()

    with pytest.raises(KeyError, match="of the script"):
        rig.ranks(2, script, seconds=10)


def test_evaluation_and_generation_between_windows_are_no_business_of_ours(monkeypatch):
    rig.fix_counts(monkeypatch, (2, 1))

    def script(rank):
        model, optimizer, loader = start(12)
        for epoch in range(2):
            for batch in loader:
                backward(model, optimizer, batch)
                optimizer.step()
                with torch.no_grad():
                    rig.squared(model, batch)
            assert optimizer.window is None
            assert loader.epoch == epoch + 1
        return rig.state_of(model)

    rig.assert_equal(*rig.ranks(2, script))


def test_plans_are_the_same_everywhere_and_cover_the_epoch_once():
    def script(rank):
        model, optimizer, loader = start(53, 4)
        windows = {}
        for batch in loader:
            windows[optimizer.window.index] = optimizer.window.ranges
            backward(model, optimizer, batch)
            optimizer.step()
        return windows

    plans = rig.ranks(4, script)
    for index in {index for windows in plans for index in windows}:
        assert len({windows[index] for windows in plans if index in windows}) == 1
    merged = rig.merged(plans)
    positions = sorted(i for window in merged for start, stop in window for i in range(start, stop))
    assert positions == list(range(53))
    assert not elche.is_initialized()
