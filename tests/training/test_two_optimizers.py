"""Two optimizers in one job: one after the other, and refused where their windows would mix."""

from __future__ import annotations

import pytest
import training_rig as rig

from elche.errors import RankError


def make(n=8):
    model = rig.mlp()
    optimizer, loader = rig.distribute(model, rig.sgd(model), rig.samples(n), 1)
    return model, optimizer, loader


def train(model, optimizer, batch):
    optimizer.zero_grad()
    rig.squared(model, batch).backward()
    optimizer.step()


def test_alternating_batches_of_two_loaders_are_refused_before_any_update():
    """As of a GAN: one rank would close a window of the one while another closes one of the other."""

    def script(rank):
        first, second = make(), make()
        updates = []
        try:
            for batches in zip(first[2], second[2], strict=True):
                for (model, optimizer, _), batch in zip((first, second), batches, strict=True):
                    train(model, optimizer, batch)
        except RankError as error:
            updates = [first[1].num_updates, second[1].num_updates, str(error)]
        return updates

    for first, second, text in rig.ranks(2, script, seconds=10):
        assert (first, second) == (0, 0)
        assert "rank 0: two loaders are gone through at once" in text
        assert "rank 1: two loaders are gone through at once" in text


def test_epochs_of_two_optimizers_may_take_turns(monkeypatch):
    rig.fix_counts(monkeypatch, (2, 1))

    def script(rank):
        both = make(), make(9)
        for _ in range(2):
            for model, optimizer, loader in both:
                for batch in loader:
                    train(model, optimizer, batch)
        return [optimizer.num_updates for _, optimizer, _ in both]

    assert rig.ranks(2, script, seconds=10) == [[6, 6]] * 2


def test_leaving_the_first_of_two_optimizers_is_told_in_its_own_words(monkeypatch):
    rig.fix_counts(monkeypatch, (1, 1))

    def script(rank):
        model, optimizer, loader = make()
        wide = rig.mlp(7)
        rig.distribute(wide, rig.sgd(wide), rig.samples(8), 1)
        for batch in loader:
            if rank == 1 and optimizer.num_updates == 1:
                return
            train(model, optimizer, batch)

    with pytest.raises(RankError, match=r"^rank 1: left before window 1 was closed$"):
        rig.ranks(2, script, seconds=10)
