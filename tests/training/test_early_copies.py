"""Copies to host memory that begin in backward, and what is compressed: the same bits as ever."""

from __future__ import annotations

import pytest
import training_rig as rig
from early_rig import DATA, backward, clamp_data_, same_on_gpus, scale_, small_buckets, train  # noqa: F401
from fake_gpus import FakeGpus

import elche
from elche.world import current


def test_on_the_hosts_way_copies_begin_in_backward(monkeypatch):
    expected = train()[0]
    gpus = FakeGpus(monkeypatch, available=False)  # no NCCL

    def copies(rank):
        sides = gpus.sides.get(rank, [])
        return sum(call[0] == "copy" for side in sides for call in side.calls)

    def at_backward(optimizer, model, batch):
        before = copies(current().comm.rank)
        backward(optimizer, model, batch)
        window, last = optimizer.window, len(optimizer.window.share)
        begun.setdefault((current().comm.rank, window.index, last), []).append(
            copies(current().comm.rank) - before
        )

    begun = {}
    rig.assert_equal(expected, *train(go_backward=at_backward))
    for (_, window, share), copied in begun.items():
        assert copied == [0] * (share - 1) + [4 if window else 0]


@pytest.mark.parametrize("change", [scale_, clamp_data_])
def test_on_the_hosts_way_a_changed_gradient_is_copied_again(change, monkeypatch):
    same_on_gpus(monkeypatch, lambda: train(before_step=change), gpus=["a", None, "b"])


@pytest.mark.parametrize("compression", [elche.Compression.bf16, elche.Compression.fp16])
def test_compressed_sums_begin_early_too(compression, monkeypatch):
    def script(rank):
        model = rig.mlp()
        loader = elche.DataLoader(DATA, 4)
        optimizer = elche.DistributedOptimizer(
            rig.sgd(model), model.named_parameters(), loader=loader, compression=compression
        )
        rig.loop(model, optimizer, loader)
        return rig.state_of(model)

    same_on_gpus(monkeypatch, lambda: rig.ranks(3, script))
