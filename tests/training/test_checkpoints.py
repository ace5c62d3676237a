"""What a checkpoint may be loaded into, and when: anything else is refused, and nothing is changed."""

from __future__ import annotations

import os

import pytest
import torch
import training_rig as rig
from torch import nn

import elche
from elche.errors import ConfigError, UsageError


class Training:
    """One rank's model, optimizer and TorchState on seeded samples."""

    def __init__(self, *, width=3, depth=1, adam=False, samples=12, seed=0):
        torch.manual_seed(1)
        hidden = [nn.Linear(width, width) for _ in range(depth - 1)]
        self.model = nn.Sequential(nn.Linear(3, width), *hidden, nn.Linear(width, 1)).double()
        kind, more = (torch.optim.AdamW, {}) if adam else (torch.optim.SGD, {"momentum": 0.9})
        plain = kind(self.model.parameters(), lr=0.01, **more)
        data = rig.samples(24, dtype=torch.float64)[:samples]
        self.loader = elche.DataLoader(data, 2, shuffle=True, seed=seed)
        self.optimizer = elche.DistributedOptimizer(
            plain, self.model.named_parameters(), loader=self.loader, cadence=elche.Cadence(policy="sync")
        )
        self.state = elche.elastic.TorchState(self.model, self.optimizer, loader=self.loader)

    def epochs(self, n, in_batch=lambda: None):
        numbers = []
        for epoch in self.state.epochs(n):
            numbers.append(epoch)
            for batch in self.loader:
                in_batch()
                self.optimizer.zero_grad()
                rig.squared(self.model, batch).backward()
                self.optimizer.step()
        return numbers

    def save_in_window(self, window, path):
        def in_batch():
            if self.optimizer.window.index == window:
                self.state.save(path)

        return in_batch

    def everything(self):
        return [tensor.clone() for tensor in self.model.state_dict().values()]


@pytest.fixture
def saved(tmp_path):
    """A checkpoint from the middle of the second of two epochs, and one from between them."""
    middle, between = tmp_path / "middle.elche", tmp_path / "between.elche"

    def script(rank):
        training = Training()
        training.epochs(1)
        training.state.save(between)
        training.epochs(2, training.save_in_window(8, middle))
        return training.everything()

    (after,) = rig.ranks(1, script)
    return middle, between, after


def test_training_goes_on_in_mid_epoch_as_if_it_had_never_stopped(saved):
    middle, _, after = saved

    def script(rank):
        training = Training()
        training.state.load(middle)
        return training.epochs(2), training.optimizer.num_updates, training.everything()

    ((epochs, updates, tensors),) = rig.ranks(1, script)
    assert (epochs, updates) == ([1], 12)
    for tensor, expected in zip(tensors, after, strict=True):
        assert torch.equal(tensor, expected)


def test_what_is_left_of_an_epoch_survives_a_second_save(saved, tmp_path):
    middle, _, after = saved

    def script(rank):
        training = Training()
        training.state.load(middle).save(tmp_path / "again.elche")
        return

    def again(rank):
        training = Training()
        training.state.load(tmp_path / "again.elche")
        return training.epochs(2), training.everything()

    rig.ranks(1, script)
    ((epochs, tensors),) = rig.ranks(1, again)
    assert epochs == [1]
    for tensor, expected in zip(tensors, after, strict=True):
        assert torch.equal(tensor, expected)


def test_a_state_of_before_training_begins_with_the_first_epoch(tmp_path):
    def script(rank):
        Training().state.save(tmp_path / "fresh.elche")

    def again(rank):
        training = Training()
        training.state.load(tmp_path / "fresh.elche")
        return training.epochs(2)

    rig.ranks(1, script)
    assert rig.ranks(1, again) == [[0, 1]]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"width": 1}, "parameter 0.weight is [[3, 3], [3, 1], 'torch.float64'] there and [[1, 3], [3, 1], "),
        ({"depth": 2}, "parameter 1.weight is [[1, 3], [3, 1], 'torch.float64'] there and [[3, 3], [3, 1], "),
        ({"adam": True}, "optimizer is SGD there and AdamW here"),
        ({"samples": 10}, "DataLoader's len(dataset) is 12 there and 10 here"),
        ({"seed": 5}, "DataLoader's seed is 0 there and 5 here"),
    ],
)
def test_another_training_is_refused_by_name_and_nothing_is_changed(saved, other, said):
    middle = saved[0]

    def script(rank):
        training = Training(**other)
        before = training.everything()
        with pytest.raises(ConfigError) as caught:
            training.state.load(middle)
        assert all(map(torch.equal, before, training.everything()))
        training.epochs(1)
        return str(caught.value)

    (text,) = rig.ranks(1, script)
    assert text.startswith(f"{middle} cannot be loaded: it is of another training: ")
    assert said in text


def test_between_epochs_the_dataset_may_have_grown(saved):
    def script(rank):
        training = Training(samples=16)
        training.state.load(saved[1])
        return training.epochs(2), training.optimizer.num_updates

    assert rig.ranks(1, script) == [([1], 6 + 8)]


@pytest.mark.parametrize("verb", ["load", "restore"])
def test_in_the_middle_of_an_epoch_nothing_is_taken_up(saved, verb):
    def script(rank):
        training = Training()
        training.state.save()

        def in_batch():
            if training.optimizer.window.index == 2:
                training.state.load(saved[1]) if verb == "load" else training.state.restore()

        training.epochs(1, in_batch)

    with pytest.raises(UsageError, match=r"^load\(\) or restore\(\) in the middle of epoch 0: "):
        rig.ranks(1, script)


@pytest.mark.parametrize("path", ["", 3, None, b"x"])
def test_what_is_no_path_is_refused(path):
    def script(rank):
        training = Training()
        for verb in (training.state.load, *([training.state.save] if path is not None else [])):
            with pytest.raises(ConfigError, match=r"^path must be the path of a file or a directory, got "):
                verb(path)

    rig.ranks(1, script)


def test_a_device_is_no_file_to_replace(tmp_path):
    os.mkfifo(tmp_path / "fifo")

    def script(rank):
        with pytest.raises(ConfigError, match=r"fifo', which is neither$"):
            Training().state.save(tmp_path / "fifo")

    rig.ranks(1, script)
