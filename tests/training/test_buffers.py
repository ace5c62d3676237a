"""Module buffers are equal after every window: floats the mean, integers from the lowest rank that moved."""

from __future__ import annotations

import pytest
import torch
import training_rig as rig
from torch import nn

import elche
from elche.errors import RankError


def normed(layer):
    with rig.seeded():
        return nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 1))


def step_through(model, data, batch_size=4, epochs=1, loss=rig.squared, **cadence):
    """Train; return the model's state after every window this rank had a batch in, by its index."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer, loader = rig.distribute(model, optimizer, data, batch_size, **cadence)
    states = {}
    for _ in range(epochs):
        for batch in loader:
            index = optimizer.window.index
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()
            states[index] = rig.state_of(model)
    return states


def tracking(kind):
    return kind(2, track_running_stats=True)


@pytest.mark.parametrize("counts", [(2, 1, 1), (4, 2, 1), (2, 0, 1)], ids=str)
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.BatchNorm1d(4),
        lambda: nn.BatchNorm1d(4, momentum=None),
        lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), tracking(nn.InstanceNorm1d), nn.Flatten()),
    ],
    ids=["BatchNorm", "cumulative", "InstanceNorm"],
)  # fmt: skip
def test_statistics_are_equal_after_each_window(monkeypatch, layer, counts):
    rig.fix_counts(monkeypatch, counts)
    states_w = rig.ranks(3, lambda rank: step_through(normed(layer()), rig.samples(48), epochs=2))
    for index in states_w[0]:
        rig.assert_equal(*(states[index] for states in states_w if index in states))
    last = states_w[0][max(states_w[0])]
    assert any("running_mean" in name and tensor.abs().max() > 0 for name, tensor in last.items())


def test_statistics_are_the_mean_over_the_ranks_that_moved(monkeypatch):
    rig.fix_counts(monkeypatch, (2, 0, 1))

    def script(rank):
        layer = nn.BatchNorm1d(1, momentum=0.5)
        data = [torch.tensor([[float(i)]]) for i in (2, 4, 6, 8, 10, 12)]
        step_through(layer, data, 2, loss=lambda m, x: m(x.view(-1, 1)).sum())
        return layer.running_mean.item(), layer.num_batches_tracked.item()

    # Rank 0 has batches of means 3 and 7: 1.5, then 4.25. Rank 1 has none. Rank 2 has mean 11: 5.5.
    assert rig.ranks(3, script) == [((4.25 + 5.5) / 2, 2)] * 3


class Counter(nn.Module):
    """Buffers of many kinds, changed by every forward, in place or by a new tensor."""

    def __init__(self, replace=False):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.replace = replace
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("f64", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("f16", torch.zeros(2, dtype=torch.float16))
        self.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("small", torch.zeros(2, dtype=torch.uint8))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.bool))
        self.register_buffer("empty", torch.zeros(0))
        self.register_buffer("nothing", None)
        self.register_buffer("unsaved", torch.zeros(1), persistent=False)

    def forward(self, x):
        with torch.no_grad():
            for name in ("mean", "f64", "f16", "phase", "count", "small", "unsaved"):
                self.add(name, x.sum())
            self.seen[int(x[0]) % 3] = True
        return self.weight * x

    def add(self, name, amount):
        buffer = getattr(self, name)
        if self.replace:
            setattr(self, name, (buffer + amount).to(buffer.dtype))
        else:
            buffer += amount.to(buffer.dtype)


@pytest.mark.parametrize("replace", [False, True])
def test_buffers_of_every_kind(monkeypatch, replace):
    """Also where forward puts a new tensor in a buffer's place, which may get the old one's address."""
    rig.fix_counts(monkeypatch, (2, 1))
    data = [torch.tensor([float(i)]) for i in (1, 2, 3, 4, 5, 6)]

    def script(rank):
        model = Counter(replace)
        step_through(model, data, 1, loss=lambda m, x: m(x[0]).sum())
        return dict(model.named_buffers())

    # Rank 0 adds 1, 2 | 3, 4 and rank 1 adds 5 | 6: (3 + 5) / 2 = 4, then (4 + 7 + 4 + 6) / 2 = 10.5.
    for buffers in rig.ranks(2, script):
        for name in ("mean", "f64", "f16", "unsaved"):
            assert set(buffers[name].tolist()) == {10.5}
        assert buffers["phase"].tolist() == [10.5, 10.5]
        assert buffers["count"].item() == 10  # of rank 0: 1 + 2 + 3 + 4
        assert buffers["small"].tolist() == [10, 10]
        assert buffers["seen"].tolist() == [True, True, True]
        assert [buffers[name].dtype for name in ("f16", "small", "seen")] == [
            torch.float16,
            torch.uint8,
            torch.bool,
        ]


def test_a_window_that_writes_to_no_buffer_leaves_them_as_they_are(monkeypatch):
    """Though other ranks moved in it than in the window before."""
    rig.fix_counts(monkeypatch, (1, 1, 1), (1, 1, 0))

    def script(rank):
        model, states = normed(nn.BatchNorm1d(4)), {}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        optimizer, loader = rig.distribute(model, optimizer, rig.samples(40))
        for batch in loader:
            rig.squared(model.train(optimizer.window.index % 2 == 0), batch).backward()
            optimizer.step()
            states[len(states)] = {name: buffer.clone() for name, buffer in model.named_buffers()}
        return states

    states = rig.ranks(3, script)[0]
    assert len(states) == 4
    rig.assert_equal(states[0], states[1])
    rig.assert_equal(states[2], states[3])
    assert not torch.equal(states[1]["1.running_mean"], states[2]["1.running_mean"])


def test_a_replaced_buffer_is_noticed_whatever_its_address(monkeypatch):
    """CPython gives a new object a freed one's place: after two replacements the id is the old one."""
    rig.fix_counts(monkeypatch, (2, 2))

    class Latest(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))
            self.register_buffer("latest", torch.zeros(1))

        def forward(self, x):
            self.latest = None
            self.latest = x.detach().clone()
            return self.weight * x

    def script(rank):
        model = Latest()
        data = [torch.tensor([float(i)]) for i in range(16)]
        step_through(model, data, 1, loss=lambda m, x: m(x[0]).sum())
        return model.latest.item()

    assert rig.ranks(2, script) == [11.0, 11.0]  # (7 + 15) / 2


def test_integers_come_from_the_lowest_rank_that_moved(monkeypatch):
    rig.fix_counts(monkeypatch, (0, 1, 2))
    data = [torch.tensor([float(i)]) for i in (1, 2, 3)]

    def script(rank):
        model = Counter()
        step_through(model, data, 1, loss=lambda m, x: m(x[0]).sum())
        return model.count.item()

    assert rig.ranks(3, script) == [1, 1, 1]


def test_buffers_are_those_of_rank_0_at_the_start():
    def script(rank):
        model = Counter()
        model.mean += 5 + rank
        model.count += 5 + rank
        step_through(model, [torch.tensor([1.0])] * 2, 1, loss=lambda m, x: (m.weight * x).sum())
        return model.mean.item(), model.count.item()

    assert rig.ranks(2, script) == [(5.0, 5)] * 2


def test_constants_keep_their_bits():
    def script(rank):
        model = Counter()
        model.register_buffer("constant", torch.tensor([0.1, 1e-30, 3.3e38]))
        step_through(model, rig.samples(12, width=1), 1, loss=lambda m, b: m(b[0][0]).sum())
        return model.constant

    for constant in rig.ranks(3, script):
        assert torch.equal(constant, torch.tensor([0.1, 1e-30, 3.3e38]))


def test_a_shared_module_counts_once(monkeypatch):
    rig.fix_counts(monkeypatch, (1, 1))

    def script(rank):
        layer = nn.BatchNorm1d(3)
        model = nn.Sequential(layer, nn.Linear(3, 3), layer, nn.Linear(3, 1))
        states = step_through(model, rig.samples(8))
        return states[max(states)]

    rig.assert_equal(*rig.ranks(2, script))


@pytest.mark.parametrize("who", [0, 1, None])
def test_another_shape_on_the_way_is_an_error_everywhere(who):
    class Grows(Counter):
        def forward(self, x):
            if who is None or self.rank == who:
                self.mean = torch.zeros(2)
            return self.weight * x

    def script(rank):
        model = Grows()
        model.rank = rank
        step_through(model, [torch.tensor([1.0])] * 8, 1, loss=lambda m, x: m(x[0]).sum())

    for error in rig.errors(2, script):
        assert "buffer mean changed its shape from (1,) to (2,)" in str(error)
        assert isinstance(error, RankError)


@pytest.mark.parametrize("who", [0, 1])
def test_a_buffer_that_is_taken_away_is_an_error_everywhere(who):
    class Loses(Counter):
        def forward(self, x):
            if self.rank == who:
                self.mean = None
            return self.weight * x

    def script(rank):
        model = Loses()
        model.rank = rank
        step_through(model, [torch.tensor([1.0])] * 8, 1, loss=lambda m, x: m(x[0]).sum())

    for error in rig.errors(2, script):
        assert isinstance(error, RankError)
        assert "buffer mean" in str(error)


def test_sync_buffers_false_leaves_them_alone(monkeypatch):
    rig.fix_counts(monkeypatch, (1, 1))

    def script(rank):
        model = Counter()
        data = [torch.tensor([float(i)]) for i in (1, 2)]
        step_through(model, data, 1, loss=lambda m, x: m(x[0]).sum(), sync_buffers=False)
        return model.mean.item()

    assert rig.ranks(2, script) == [1.0, 2.0]


def test_names_without_a_model_warn_that_buffers_are_not_kept():
    def script(rank):
        model = normed(nn.BatchNorm1d(4))
        loader = elche.DataLoader(rig.samples(8), 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        elche.DistributedOptimizer(optimizer, list(model.named_parameters()), loader=loader)

    with pytest.warns(RuntimeWarning, match="pass model=") as caught:
        rig.ranks(1, script)
    assert {warning.filename for warning in caught} == {__file__}
