"""Buffers that foreign kernels write to, without a trace in the tensor's version."""

from __future__ import annotations

import pytest
import torch
import training_rig as rig
from torch import nn


class Traceless(nn.Module):
    """Writes its statistics so that PyTorch counts no version: by the functional form, or through `.data`."""

    def __init__(self, through_data):
        super().__init__()
        self.through_data = through_data
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))

    def forward(self, x):
        if self.through_data:
            self.mean.data.mul_(0.5).add_(x.detach().mean(0))
            return x * self.weight
        return nn.functional.batch_norm(x, self.mean, self.var, self.weight, training=True)


@pytest.mark.parametrize("through_data", [False, True])
def test_buffers_written_without_a_trace_are_equal_too(monkeypatch, through_data):
    rig.fix_counts(monkeypatch, (2, 1, 1))

    def script(rank):
        model = Traceless(through_data)
        rig.fit(
            model, torch.optim.SGD(model.parameters(), lr=0.01), rig.samples(24), rig.squared, batch_size=2
        )
        return {name: buffer.clone() for name, buffer in model.named_buffers()}

    states = rig.ranks(3, script)
    rig.assert_equal(*states)
    assert states[0]["mean"].any()
