"""One rank with another model, data or settings: an error on all ranks that names the keys, and no hang."""

from __future__ import annotations

import pytest
import torch
import training_rig as rig
from torch import nn

import elche
from elche.errors import ConfigError, MismatchError, RankError


def start(rank, odd, **changes):
    """Build and wrap; the rank `odd` with `changes`."""
    changes = changes if rank == odd else {}
    dtype = changes.get("dtype", torch.float32)
    with rig.seeded():
        layers = [nn.Linear(3, changes.get("hidden", 4)), nn.Linear(changes.get("hidden", 4), 1)]
    model = nn.Sequential(*layers, *changes.get("extra", ())).to(dtype)
    if "order" in changes:
        model[0].weight = nn.Parameter(model[0].weight.detach().t().contiguous().t())
    named = changes.get("named", lambda model: model.named_parameters())
    groups = [{"params": [p]} for p in model.parameters()] if changes.get("groups") else model.parameters()
    make = changes.get("optimizer", torch.optim.SGD)
    data = rig.samples(changes.get("samples", 12))
    loader = elche.DataLoader(data, changes.get("batch_size", 2), **changes.get("loader", {}))
    cadence = elche.Cadence(anchor=2, **changes.get("cadence", {}))
    optimizer = make(groups, lr=0.1)
    return elche.DistributedOptimizer(optimizer, named(model), loader=loader, cadence=cadence), loader, model


CASES = {
    "another layer": ({"extra": [nn.Linear(1, 1)]}, ["2.weight", "2.bias", "absent"]),
    "another shape": ({"hidden": 5}, ["0.weight", "[4, 3]", "[5, 3]"]),
    "another dtype": ({"dtype": torch.float64}, ["0.weight", "torch.float32", "torch.float64"]),
    "another memory order": ({"order": True}, ["0.weight"]),
    "another name": ({"named": lambda m: [(f"my.{k}", p) for k, p in m.named_parameters()]}, ["my.0.weight"]),
    "other groups": ({"groups": True}, ["parameters by group", "[1, 1, 1, 1]"]),
    "another optimizer": ({"optimizer": torch.optim.Adam}, ["optimizer", "SGD", "Adam"]),
    "another batch size": ({"batch_size": 3}, ["batch_size", "2", "3"]),
    "another dataset": ({"samples": 13}, ["len(dataset)", "12", "13"]),
    "another seed": ({"loader": {"seed": 1}}, ["seed", "0", "1"]),
    "shuffled": ({"loader": {"shuffle": True}}, ["shuffle", "false", "true"]),
    "drop_last": ({"loader": {"drop_last": True}}, ["drop_last"]),
    "another cadence": ({"cadence": {"max_anchor": 7}}, ["max_anchor", "null", "7"]),
    "another nonfinite": ({"cadence": {"nonfinite": "raise"}}, ["nonfinite", "skip", "raise"]),
    "another buffer": ({"extra": [nn.BatchNorm1d(1, affine=False)]}, ["buffer 2.running_mean", "absent"]),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:buffers such as BatchNorm's")  # a list of names hides the model
@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_the_text_names_keys_and_ranks_everywhere(case, odd):
    changes, words = CASES[case]
    caught = rig.errors(3, lambda rank: start(rank, odd, **changes))
    for error in caught:
        assert isinstance(error, MismatchError)
        assert "rank 0" in str(error)
        assert f"rank {odd or 1}" in str(error)
        for word in words:
            assert word in str(error)
    assert len({str(error) for error in caught}) == 1


REFUSALS = {
    "no optimizer": ({"optimizer": lambda groups, lr: "SGD"}, "torch.optim.Optimizer"),
    "LBFGS": ({"optimizer": torch.optim.LBFGS}, "LBFGS"),
    "SyncBatchNorm": ({"extra": [nn.SyncBatchNorm(1)]}, "SyncBatchNorm"),
    "a dataset that is too small": ({"samples": 2}, "at least 3"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_one_rank_refuses_ends_all(case):
    changes, word = REFUSALS[case]
    caught = rig.errors(3, lambda rank: start(rank, 1, **changes))
    assert isinstance(caught[1], ConfigError)
    assert word in str(caught[1])
    for error in (caught[0], caught[2]):
        assert isinstance(error, RankError)
        assert "rank 1" in str(error)
        assert word in str(error)


def test_a_refusal_leaves_the_optimizer_as_it_was():
    def script(rank):
        model = rig.mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = elche.DataLoader(rig.samples(12), 2 + rank)
        with pytest.raises(MismatchError):
            elche.DistributedOptimizer(optimizer, model.named_parameters(), loader=loader)
        assert type(optimizer) is torch.optim.SGD
        loader = elche.DataLoader(rig.samples(12), 2)
        optimizer = elche.DistributedOptimizer(optimizer, model.named_parameters(), loader=loader)
        for batch in loader:
            optimizer.zero_grad()
            rig.squared(model, batch).backward()
            optimizer.step()
        return optimizer.num_updates

    assert rig.ranks(2, script) == [2, 2]


@pytest.mark.parametrize("epochs", [(0, 0, 1), (3, 0, 0)])
def test_another_epoch_on_one_rank(epochs):
    """Another order of samples on one rank would train some twice and some never."""

    def script(rank):
        optimizer, loader, model = start(rank, None, loader={"shuffle": True})
        loader.set_epoch(epochs[rank])
        for batch in loader:
            optimizer.zero_grad()
            rig.squared(model, batch).backward()
            optimizer.step()

    for error in rig.errors(3, script):
        assert isinstance(error, MismatchError)
        assert "epoch" in str(error)
