"""Trainings whose buckets are small, on CPUs and on what passes for GPUs."""

from __future__ import annotations

from functools import partial

import pytest
import training_rig as rig
from fake_gpus import FakeGpus
from torch import nn

from elche.training import gradients
from elche.training.buckets import make_buckets

COUNTS = (2, 1, 1), (1, 0, 2), (3, 1, 1)
DATA = rig.samples(101)  # 26 batches of 4, 7 windows


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    """Each of the four parameters has a bucket of its own."""
    monkeypatch.setattr(gradients, "make_buckets", partial(make_buckets, cap_bytes=16))
    rig.fix_counts(monkeypatch, *COUNTS)


def backward(optimizer, model, batch):
    optimizer.zero_grad()
    rig.squared(model, batch).backward()


def train_here(go_backward=backward, before_step=lambda optimizer, model: None, data=DATA, **settings):
    """Train on this rank; return its parameters."""
    model = rig.mlp()
    optimizer, loader = rig.distribute(model, rig.sgd(model), data, **settings)
    for batch in loader:
        go_backward(optimizer, model, batch)
        before_step(optimizer, model)
        optimizer.step()
    return rig.state_of(model)


def train(n=3, *args, **kwargs):
    """Train on n ranks; return every rank's parameters."""
    return rig.ranks(n, lambda rank: train_here(*args, **kwargs))


def same_on_gpus(monkeypatch, run, **options):
    """Run on CPUs, then on GPUs: the same bits on all ranks; return the GPUs."""
    expected = run()[0]
    gpus = FakeGpus(monkeypatch, **options)
    rig.assert_equal(expected, *run())
    return gpus


def scale_(optimizer, model):
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def clamp_data_(optimizer, model):
    for parameter in model.parameters():
        parameter.grad.data.clamp_(-0.01, 0.01)  # unseen by autograd's version counters
