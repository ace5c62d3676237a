"""The loader: workers, collate functions, looking ahead, samples once."""

from __future__ import annotations

import collections
import gc
import threading

import pytest
import torch
import training_rig as rig
from training_rig import Batched, Squares

import elche
from elche.errors import UsageError


def go(loader, epochs=1, rank=0):
    """Train on `loader`; return the sample ids this rank had, by epoch."""
    model = rig.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = elche.DistributedOptimizer(optimizer, model.named_parameters(), loader=loader)
    had = []
    for _ in range(epochs):
        had.append([])
        for x, y in loader:
            had[-1] += (10 * x[:, 0]).round().int().tolist()
            optimizer.zero_grad()
            rig.squared(model, (x, y)).backward()
            optimizer.step()
    return had


def complete(had_w, n=23):
    """Each sample is in each epoch once, over all ranks."""
    for epoch in zip(*had_w, strict=True):
        assert sorted(i for ids in epoch for i in ids) == list(range(n))


@pytest.mark.parametrize("dataset", [Squares, Batched])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3},
        {"num_workers": 1, "multiprocessing_context": "spawn"},
    ],
    ids=str,
)
def test_workers_bring_each_sample_once(dataset, settings):
    """One rank: a process with several threads must not fork. mpirun does it with more, in test_mpi.py."""
    torch.set_num_threads(1)
    loader = elche.DataLoader(dataset(), 4, shuffle=True, seed=3, **settings)

    def script(rank):
        return go(loader, epochs=1 if "multiprocessing_context" in settings else 3)

    elche.init()
    try:
        had = script(0)
    finally:
        elche.shutdown()
    complete([had])
    assert had[0] == loader.permutation(0)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_exception_of_the_dataset_reaches_the_user(monkeypatch, num_workers):
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)  # workers end this late
    elche.init()
    try:
        with pytest.raises(ValueError, match="sample 11 is broken"):
            go(elche.DataLoader(Squares(bad=11), 4, num_workers=num_workers))
    finally:
        elche.shutdown()
        gc.collect()  # the traceback holds PyTorch's iterator, and that its worker


def test_a_collate_function_of_ones_own(monkeypatch):
    rig.fix_counts(monkeypatch, (2, 1))

    def collate(items):
        assert items
        return [torch.stack(part) + 0 for part in zip(*items, strict=True)]

    complete(rig.ranks(2, lambda rank: go(elche.DataLoader(Squares(), 4, collate_fn=collate), 2)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU memory is pinned")
def test_pin_memory_is_accepted_without_a_gpu():
    """PyTorch says that it has no effect, once an epoch, and so it is."""
    with pytest.warns(UserWarning, match="no accelerator is found"):
        complete(rig.ranks(2, lambda rank: go(elche.DataLoader(Squares(), 4, pin_memory=True))))


def test_drop_last_drops_it():
    had = rig.ranks(3, lambda rank: go(elche.DataLoader(Squares(23), 4, drop_last=True), 2))
    complete(had, 20)


def test_orders_differ_by_epoch_and_seed_and_are_permutations():
    loader, other = (elche.DataLoader(Squares(), 4, shuffle=True, seed=seed) for seed in (1, 2))
    orders = [loader.permutation(0), loader.permutation(1), other.permutation(0), list(range(23))]
    assert all(sorted(order) == list(range(23)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert elche.DataLoader(Squares(), 7, shuffle=True, seed=1).permutation(1) == orders[1]
    assert elche.DataLoader(Squares(), 4).permutation(5) == list(range(23))


def test_len_is_the_batches_of_an_epoch_over_all_ranks():
    lengths = [len(elche.DataLoader(Squares(n), 4)) for n in (1, 3, 4, 5, 23)]
    assert lengths == [1, 1, 1, 2, 6]
    assert len(elche.DataLoader(Squares(23), 4, drop_last=True)) == 5


def test_a_loop_without_optimizer_is_refused():
    with pytest.raises(UsageError, match="no DistributedOptimizer"):
        next(iter(elche.DataLoader(Squares(), 4)))


SWAP = [(6, 1), *[(1, 6)] * 20]  # slot 1 soon takes over what slot 0 looks ahead to in its span


class Ahead:
    """PyTorch's loader with workers, as far as order goes: it asks for three batches more than it gives."""

    def __init__(self, batches):
        self.batches, self.queue = batches, collections.deque()

    def __next__(self):
        while len(self.queue) < 4:
            self.queue.append(next(self.batches))
        return self.queue.popleft()


class AheadLoader(torch.utils.data.DataLoader):
    def __iter__(self):
        return Ahead(super().__iter__())


class Counted(Squares):
    def __init__(self, n):
        super().__init__(n)
        self.loaded, self.lock = collections.Counter(), threading.Lock()

    def __getitem__(self, i):
        with self.lock:
            self.loaded[i] += 1
        return super().__getitem__(i)


@pytest.mark.parametrize("kind", [Squares, Batched])
def test_stolen_batches_come_right_after_wrong_guesses(monkeypatch, kind):
    rig.fix_counts(monkeypatch, *SWAP)
    monkeypatch.setattr(torch.utils.data, "DataLoader", AheadLoader)
    complete(rig.ranks(2, lambda rank: go(elche.DataLoader(kind(97), 2, shuffle=True), 2)), 97)


def test_looking_ahead_loads_a_sample_twice_at_most(monkeypatch):
    rig.fix_counts(monkeypatch, *SWAP)
    monkeypatch.setattr(torch.utils.data, "DataLoader", AheadLoader)
    dataset = Counted(97)
    complete(rig.ranks(2, lambda rank: go(elche.DataLoader(dataset, 2))), 97)
    assert set(dataset.loaded) == set(range(97))
    assert dataset.loaded.total() > 97  # some guesses were wrong, else this tests nothing
    assert max(dataset.loaded.values()) == 2


def test_without_workers_nothing_is_loaded_in_vain(monkeypatch):
    rig.fix_counts(monkeypatch, *SWAP)
    dataset = Counted(97)
    complete(rig.ranks(2, lambda rank: go(elche.DataLoader(dataset, 2), 2)), 97)
    assert dataset.loaded == dict.fromkeys(range(97), 2)
