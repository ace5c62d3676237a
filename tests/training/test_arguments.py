"""Wrong arguments of what a user calls: refused with the value and the bound, before anything has changed."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import training_rig as rig
from torch import nn

import elche
from elche.errors import ConfigError, NotInitializedError, RankError


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from range(3)


DATA = list(range(10))
LOADERS = {
    "an IterableDataset": ((Endless(), 2), {}, "IterableDataset.*load them into a list"),
    "a generator": (((i for i in DATA), 2), {}, "generator"),
    "a set": ((set(DATA), 2), {}, "set"),
    "None": ((None, 2), {}, "NoneType"),
    "no samples": (([], 2), {}, "at least 1 sample, got 0"),
    "batch_size 0": ((DATA, 0), {}, "batch_size .*at least 1, got 0"),
    "batch_size -1": ((DATA, -1), {}, "batch_size .*at least 1, got -1"),
    "batch_size 2.0": ((DATA, 2.0), {}, "batch_size .*got 2.0"),
    "batch_size True": ((DATA, True), {}, "batch_size .*got True"),
    "seed -1": ((DATA, 2), {"seed": -1}, "seed .*at least 0, got -1"),
    "seed None": ((DATA, 2), {"seed": None}, "seed .*got None"),
    "shuffle 'yes'": ((DATA, 2), {"shuffle": "yes"}, "shuffle .*got 'yes'"),
    "drop_last 1": ((DATA, 2), {"drop_last": 1}, "drop_last .*got 1"),
    "collate_fn 1": ((DATA, 2), {"collate_fn": 1}, "collate_fn .*got 1"),
    "num_workers -1": ((DATA, 2), {"num_workers": -1}, "num_workers"),
    "prefetch without workers": ((DATA, 2), {"prefetch_factor": 2}, "prefetch_factor"),
    "persistent without workers": ((DATA, 2), {"persistent_workers": True}, "persistent_workers"),
    "timeout -1": ((DATA, 2), {"timeout": -1}, "timeout"),
}


@pytest.mark.parametrize("case", LOADERS)
def test_data_loader(case):
    positional, keywords, text = LOADERS[case]
    with pytest.raises(ValueError, match=text):
        elche.DataLoader(*positional, **keywords)


@pytest.mark.parametrize("epoch", [-1, 1.0, "0", None, True])
def test_epochs_are_numbers_from_0(epoch):
    loader = elche.DataLoader(DATA, 2, shuffle=True)
    for call in (loader.set_epoch, loader.permutation):
        with pytest.raises(ConfigError, match=f"epoch must be an integer of at least 0, got {epoch!r}"):
            call(epoch)
    assert loader.epoch == 0


def wrap(network=None, optimizer=None, names=None, loader=None, **keywords):
    network = network or rig.mlp()
    optimizer = optimizer or torch.optim.SGD(network.parameters(), lr=0.1)
    names = names(network) if names else network.named_parameters()
    loader = loader or elche.DataLoader(rig.samples(8), 2)
    return elche.DistributedOptimizer(optimizer, names, loader=loader, **keywords)


def named(model):
    return list(model.named_parameters())


WRAPPINGS = {
    "no optimizer": ({"optimizer": "SGD"}, "optimizer must be a torch.optim.Optimizer, got str"),
    "a torch DataLoader": (
        {"loader": torch.utils.data.DataLoader(DATA)},
        "loader must be an elche.DataLoader",
    ),
    "a list of data": ({"loader": DATA}, "loader must be an elche.DataLoader, got list"),
    "cadence 2": ({"cadence": 2}, "cadence must be an elche.Cadence, got int"),
    "model 5": ({"model": 5}, "model must be a torch.nn.Module, got int"),
    "parameters": ({"names": lambda m: m.parameters()}, "named_parameters must be model.named_parameters()"),
    "a method": ({"names": lambda m: m.named_parameters}, "named_parameters must be .*got method"),
    "a number": ({"names": lambda m: 3}, "named_parameters must be .*got int"),
    "numbers": ({"names": lambda m: [1, 2]}, "named_parameters must be .*got one of int"),
    "a name twice": ({"names": lambda m: [("a", p) for p in m.parameters()]}, "the name 'a' twice"),
    "names missing": ({"names": lambda m: named(m)[:2]}, "lacks 2 of the optimizer's 4 parameters"),
    "a slow slot that is none": ({"cadence": elche.Cadence(speed_ratio=(2, 2.0))}, "at most 1, got 2"),
}


@pytest.mark.filterwarnings("ignore:buffers such as BatchNorm's")
@pytest.mark.parametrize("case", WRAPPINGS)
def test_distributed_optimizer(case):
    keywords, text = WRAPPINGS[case]
    for error in rig.errors(2, lambda rank: wrap(**keywords)):
        assert isinstance(error, ConfigError)
        with pytest.raises(ConfigError, match=text):
            raise error


@pytest.mark.parametrize("who", [0, 1])
def test_a_wrong_argument_on_one_rank_ends_all(who):
    def script(rank):
        wrap(names=(lambda m: 3) if rank == who else None)

    caught = rig.errors(2, script)
    assert isinstance(caught[who], ConfigError)
    assert isinstance(caught[1 - who], RankError)
    assert f"rank {who}: named_parameters must be" in str(caught[1 - who])


def test_a_loader_works_for_one_optimizer():
    def script(rank):
        loader = elche.DataLoader(rig.samples(8), 2)
        wrap(loader=loader)
        model = rig.mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ConfigError, match="make one for each"):
            wrap(model, optimizer, loader=loader)
        assert type(optimizer) is torch.optim.SGD

    rig.ranks(2, script)


def test_an_optimizer_is_wrapped_once():
    def script(rank):
        optimizer = wrap()
        with pytest.raises(ConfigError, match="is a DistributedOptimizer already"):
            wrap(optimizer=optimizer)

    rig.ranks(2, script)


def test_add_param_group_after_wrapping():
    def script(rank):
        optimizer = wrap()
        with pytest.raises(ConfigError, match="before wrapping"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
        assert len(optimizer.param_groups) == 1

    rig.ranks(2, script)


def test_lr_scaling_needs_a_learning_rate():
    class Plain(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

    def script(rank):
        model = rig.mlp()
        cadence = elche.Cadence(lr_scaling="linear", lr_reference_samples=8)
        wrap(model, Plain(model.parameters()), cadence=cadence)

    for error in rig.errors(2, script):
        assert isinstance(error, ConfigError)
        assert "lr_scaling" in str(error)


@pytest.mark.parametrize("loss", ["low", (1, 2), torch.zeros(2), None], ids=str)
def test_a_loss_is_one_number(loss):
    def script(rank):
        optimizer = wrap()
        with pytest.raises(ConfigError, match="loss must be a number"):
            optimizer.report_loss(loss)

    rig.ranks(1, script)


@pytest.mark.parametrize("result", [None, ("loss", 1.0), torch.zeros(3)], ids=str)
def test_a_closure_may_return_anything(result):
    def script(rank):
        loader = elche.DataLoader(rig.samples(8), 2)
        model = rig.mlp()
        optimizer = wrap(model, loader=loader)
        for batch in loader:

            def closure(batch=batch):
                optimizer.zero_grad()
                rig.squared(model, batch).backward()
                return result

            assert optimizer.step(closure) is result
        return optimizer.num_updates

    assert rig.ranks(2, script) == [1, 1]


NOT_BUILT = {
    "policy": "async",
    "average": "parameters",
    "partition_ratios": (0.5, 0.5),
    "guard": "trend",
    "gamma": 0.5,
    "outer": object(),
    "easgd_alpha": 0.5,
    "max_overshoot": 4,
    "overlap": True,
}


@pytest.mark.parametrize("name", NOT_BUILT)
def test_a_cadence_that_is_not_built_is_refused_by_name(name):
    with pytest.raises(ConfigError, match=rf"Cadence\({name}=.* is not built yet"):
        elche.Cadence(**{name: NOT_BUILT[name]})


WRONG = {
    "anchor": [0, -1, 1.5, True, "2"],
    "min_anchor": [0, 3],
    "max_anchor": [0, 1],
    "overhead_target": [0.0, 0.6, math.nan],
    "max_batch_diff": [-1, 0.5],
    "speed_ratio": [(0, 0.5), (-1, 2.0), (0,), 2.0, (0, math.inf)],
    "max_grad_norm": [0.0, -1.0, math.nan, math.inf, "1"],
    "nonfinite": ["drop", None],
    "lr_scaling": ["cubic", "linear"],
    "lr_reference_samples": [0, 64],
    "weight": [3],
    "resync_every": [-1, 2.0],
    "sync_buffers": [1, None],
    "guard": ["strict"],
    "policy": ["fast"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_a_cadence_out_of_bounds(name, value):
    with pytest.raises(ConfigError) as caught:
        elche.Cadence(**{name: value})
    assert name.split("_")[0] in str(caught.value)


@pytest.mark.parametrize(
    "call", [elche.rank, elche.size, elche.local_rank, elche.device, wrap], ids=lambda call: call.__name__
)
def test_before_init(call):
    with pytest.raises(NotInitializedError, match=r"elche.init\(\) comes first"):
        call()


@pytest.mark.parametrize("name", ["ELCHE_LOGS", "ELCHE_", "ELCHE_STALL"])
def test_an_unknown_variable(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=f"{name} is not a setting"):
        elche.init()
    assert not elche.is_initialized()


@pytest.mark.parametrize(
    ("name", "value"), [("STALL_SECONDS", "0"), ("STALL_SECONDS", "soon"), ("BACKEND", "tcp")]
)
def test_a_variable_out_of_bounds(monkeypatch, name, value):
    monkeypatch.setenv(f"ELCHE_{name}", value)
    with pytest.raises(ConfigError, match=f"ELCHE_{name} must be .*got '{value}'"):
        elche.init()


def test_init_and_shutdown_may_be_repeated_and_leave_threads_alone():
    before = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        elche.init()
        elche.init()
    assert (elche.rank(), elche.size(), torch.get_num_threads()) == (0, 1, before)
    elche.shutdown()
    elche.shutdown()
    assert not elche.is_initialized()
    elche.init()
    elche.shutdown()


@pytest.mark.parametrize("comm", [3, [0, 1], "mpi"])
def test_init_with_what_is_no_communicator(comm):
    with pytest.raises(ConfigError, match="comm must be"):
        elche.init(comm)
    assert not elche.is_initialized()
