"""Ranks that leave before the end: those who wait for them hear of it, and nobody waits where all leave."""

from __future__ import annotations

import pytest
import training_rig as rig

import elche
from elche.comm.base import all_gather_bytes
from elche.errors import RankError, UsageError
from elche.world import current


def train(leaves):
    """Train on a few samples until `leaves(optimizer)` before a batch; returns the updates until then."""
    model = rig.mlp()
    optimizer, loader = rig.distribute(model, rig.sgd(model), rig.samples(12), 1)
    for batch in loader:
        if leaves(optimizer):
            break
        optimizer.zero_grad()
        rig.squared(model, batch).backward()
        optimizer.step()
    return optimizer.num_updates


def test_a_rank_that_leaves_in_mid_epoch_is_named_to_those_who_train_on(monkeypatch):
    rig.fix_counts(monkeypatch, (1, 1, 1))

    def script(rank):
        return train(lambda optimizer: rank == 1 and optimizer.num_updates == 1)

    with pytest.raises(RankError, match=r"^rank 1: left before window 1 was closed$"):
        rig.ranks(3, script, seconds=10)


def test_ranks_that_all_leave_in_mid_epoch_part_in_silence(monkeypatch):
    rig.fix_counts(monkeypatch, (1, 1, 1))
    assert (
        rig.ranks(3, lambda rank: train(lambda optimizer: optimizer.num_updates == 2), seconds=10) == [2] * 3
    )


def test_a_rank_that_leaves_before_there_is_an_optimizer_is_named():
    def script(rank):
        if rank != 2:
            train(lambda optimizer: False)

    with pytest.raises(RankError, match=r"^ranks \[2\] ended while the others began to train$"):
        rig.ranks(3, script, seconds=10)


def test_ranks_that_never_train_part_in_silence():
    def script(rank):
        return all_gather_bytes(current().comm, b"x" * rank)

    assert rig.ranks(3, script, seconds=10) == [[b"", b"x", b"xx"]] * 3


def test_a_fork_that_ends_says_nothing_in_its_parents_name(monkeypatch):
    def script(rank):
        train(lambda optimizer: False)
        monkeypatch.setattr("os.getpid", lambda: -1)
        elche.shutdown()
        monkeypatch.undo()

    assert rig.ranks(1, script) == [None]


@pytest.mark.parametrize("n", [1, 2])
def test_after_shutdown_a_step_is_refused_and_so_is_an_epoch(n):
    def script(rank):
        model = rig.mlp()
        optimizer, loader = rig.distribute(model, rig.sgd(model), rig.samples(12), 1)
        for batch in loader:
            rig.squared(model, batch).backward()
            elche.shutdown()
            with pytest.raises(UsageError, match=r"^elche\.shutdown\(\) has been called"):
                optimizer.step()
            break
        with pytest.raises(UsageError, match="train no more"):
            next(iter(loader))

    rig.ranks(n, script, seconds=10)
