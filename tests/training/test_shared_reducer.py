"""Sums in shared memory: in rank order, the same bits everywhere, and nobody writes where others read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import training_rig as rig
from segments import open_segments

from elche.comm import memory, shm
from elche.config import Environment
from elche.errors import CommError
from elche.training.buckets import make_buckets
from elche.training.host_reducer import HostReducer
from elche.training.reducers import Reducers
from elche.training.shared_reducer import CHUNK_BYTES, Home, SharedReducer
from elche.world import current

LINE = "elche: gradients are summed over MPI, not in shared memory: "
CHUNK = CHUNK_BYTES // 4
SIZES = [0, 1, 3, 15, 16, 17, 1023, 1024, 1025, CHUNK - 1, CHUNK + 1, 3 * CHUNK + 5]


def buckets_of(rank, numel, dtype=torch.float32):
    """A bucket of the given size, and a small one, filled with numbers of that rank's."""
    buckets = make_buckets([torch.zeros(numel, dtype=dtype), torch.zeros(5, dtype=torch.float64)])
    for bucket in buckets:
        bucket.own_n.copy_(torch.randn(bucket.own_n.numel(), generator=torch.Generator().manual_seed(rank)))
    return buckets


def connected(comm, buckets):
    reducer = SharedReducer(comm, Home(buckets), "one")
    assert reducer.connect() is None
    return reducer


def summed(comm, reducer, buckets):
    reducer.all_reduce(buckets, [], [], stands=True)
    assert comm.agree(True)
    return [bucket.sum_n.clone() for bucket in buckets]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.complex64], ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_the_sum_is_in_rank_order(n, dtype):
    def live(comm, numel):
        buckets = buckets_of(comm.rank, numel, dtype)
        before = [bucket.own_n.clone() for bucket in buckets]
        reducer = connected(comm, buckets)
        sums = summed(comm, reducer, buckets)
        assert all(torch.equal(bucket.own_n, own_n) for bucket, own_n in zip(buckets, before, strict=True))
        return before, sums

    for numel in SIZES if dtype is torch.float32 else [17, CHUNK + 1]:
        outcomes = memory.run(n, live, numel)
        for index in range(len(outcomes[0][0])):
            total_n = outcomes[0][0][index].clone()
            for before, _ in outcomes[1:]:
                total_n += before[index]
            for _, sums in outcomes:
                assert torch.equal(sums[index], total_n)


def test_windows_follow_each_other():
    def live(comm):
        buckets = buckets_of(comm.rank, 100)
        reducer, seen = connected(comm, buckets), []
        for window in range(3):
            for bucket in buckets:
                bucket.own_n.fill_(10.0**window * (comm.rank + 1))
            assert comm.agree(True)  # the exchange
            seen.append([set(sum_n.tolist()) for sum_n in summed(comm, reducer, buckets)])
        return seen

    assert memory.run(3, live) == [[[{6.0}] * 2, [{60.0}] * 2, [{600.0}] * 2]] * 3


def test_inf_and_nan_come_through():
    def live(comm):
        buckets = buckets_of(comm.rank, 8)
        buckets[0].own_n.copy_(torch.tensor([torch.inf, -torch.inf, torch.nan, 1, torch.inf, 0, 0, 0]))
        if comm.rank == 1:
            buckets[0].own_n[4] = -torch.inf
        return summed(comm, connected(comm, buckets), buckets)[0].tolist()

    expected = [torch.inf, -torch.inf, torch.nan, 2.0, torch.nan, 0.0, 0.0, 0.0]
    for sums in memory.run(2, live):
        assert sums == pytest.approx(expected, nan_ok=True)


def test_who_wakes_in_the_midst_of_an_old_sum_writes_where_nobody_looks():
    def live(comm):
        buckets = buckets_of(comm.rank, 100)
        home = Home(buckets)
        old, new = (SharedReducer(comm, home, name) for name in ("old", "new"))
        for reducer in (old, new):
            assert reducer.connect() is None
        sums = summed(comm, new, buckets)
        assert comm.agree(True)
        for bucket in buckets:
            bucket.own_n.fill_(1e6)
        assert comm.agree(True)
        old.all_reduce(buckets, [], [], stands=True)
        assert comm.agree(True)
        return all(torch.equal(bucket.sum_n, sum_n) for bucket, sum_n in zip(buckets, sums, strict=True))

    assert memory.run(2, live) == [True, True]


def test_after_its_end_the_sum_is_this_ranks_own():
    def live(comm):
        buckets = buckets_of(comm.rank, 100)
        reducer = connected(comm, buckets)
        reducer.end()
        assert comm.agree(True)
        for bucket in buckets:
            bucket.sum_n.fill_(comm.rank)
        assert comm.agree(True)
        assert not any(bucket.is_shared for bucket in buckets)
        return [set(bucket.sum_n.tolist()) for bucket in buckets]

    assert memory.run(3, live) == [[{0.0}] * 2, [{1.0}] * 2, [{2.0}] * 2]


def test_an_old_views_files_are_closed():
    def live(comm):
        buckets, seen = buckets_of(comm.rank, 100), []
        home = Home(buckets)
        for view in range(5):
            reducer = SharedReducer(comm, home, f"view-{view}")
            assert reducer.connect() is None
            assert comm.agree(True)
            seen.append(open_segments())
            assert comm.agree(True)
        return seen

    before = open_segments()
    for seen in memory.run(3, live):
        assert len(set(seen[1:])) == 1
    assert open_segments() == before


# Which way is taken.


def train(n=3):
    def script(rank):
        model = rig.mlp()
        rig.fit(model, rig.sgd(model), rig.samples(), epochs=2)
        ways = [type(reducer) for reducer in Reducers.of(current())._on_cpus.values()]
        return rig.state_of(model), ways

    states, ways = zip(*rig.ranks(n, script), strict=True)
    rig.assert_equal(*states)
    return states[0], ways[0]


@pytest.fixture
def by_messages(monkeypatch):
    """What the same training comes to where all is sent."""
    rig.fix_counts(monkeypatch, (2, 1, 1), (1, 0, 3))
    with monkeypatch.context() as patched:
        patched.setattr("elche.start.read_environment", lambda: Environment(backend="mpi"))
        state, ways = train()
    assert ways == [HostReducer]
    return state


def test_one_host_shares_memory(by_messages, capfd):
    state, ways = train()
    assert ways == [SharedReducer]
    rig.assert_equal(by_messages, state)
    assert LINE not in capfd.readouterr().err


def on_hosts(monkeypatch, *hosts):
    """Let the ranks be on these hosts."""
    told = property(lambda comm: list(hosts[: comm.size]), lambda comm, value: None)
    monkeypatch.setattr(memory.MemoryComm, "hosts", told, raising=False)


@pytest.mark.parametrize("hosts", [(0, 1, 2), (0, 0, 1), (0, 1, 0)])
def test_hosts_with_one_rank_or_different_numbers_send_all(hosts, by_messages, monkeypatch):
    on_hosts(monkeypatch, *hosts)
    state, ways = train()
    assert ways == [HostReducer]
    rig.assert_equal(by_messages, state)


@pytest.mark.parametrize(
    "hosts", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 0), (0, 0, 0, 1, 1, 1), (0, 1, 2, 0, 1, 2)]
)
def test_hosts_sum_first_and_then_meet(hosts, monkeypatch):
    on_hosts(monkeypatch, *hosts)
    reached = []
    plain = memory.MemoryComm.beside

    def beside(comm, ranks, name, *, deadline_seconds):
        reached.append(tuple(ranks))
        return plain(comm, ranks, name, deadline_seconds=deadline_seconds)

    monkeypatch.setattr(memory.MemoryComm, "beside", beside)

    def live(comm, numel):
        buckets = buckets_of(comm.rank, numel)
        reducer, sums = connected(comm, buckets), []
        for window in range(2):
            for bucket in buckets:
                bucket.own_n.fill_(10.0**window * (comm.rank + 1))
            assert comm.agree(True)
            sums.append([set(sum_n.tolist()) for sum_n in summed(comm, reducer, buckets)])
        reducer.end()
        return sums

    n = len(hosts)
    total = n * (n + 1) / 2
    for numel in (1, 17, CHUNK + 1):
        expected = [[{total * 10.0**window}] * 2 for window in range(2)]
        assert memory.run(n, live, numel) == [expected] * n
    for peers in reached:
        assert sorted(hosts[rank] for rank in peers) == sorted(set(hosts)), "one of each host"


class User:
    """Whose buckets they are."""


def test_a_connection_that_fails_at_the_last_leaves_no_sum_where_others_write(monkeypatch):
    on_hosts(monkeypatch, 0, 0, 1, 1)
    plain = memory.MemoryComm.beside

    def beside(comm, *args, **kwargs):
        if comm.rank == 0:
            raise CommError("processes [2] are gone")
        return plain(comm, *args, **kwargs)

    monkeypatch.setattr(memory.MemoryComm, "beside", beside)

    def live(comm):
        world, user = SimpleNamespace(comm=comm, environment=Environment()), User()
        reducers, buckets = Reducers(world), buckets_of(comm.rank, 100)
        if comm.rank == 0:
            with pytest.raises(CommError, match="are gone"):
                reducers.prepare(user, buckets, None, some_on_gpu=False)
        else:
            reducers.prepare(user, buckets, None, some_on_gpu=False)
        assert all(bucket.is_shared for bucket in buckets)
        world.comm = memory.single()  # the next view
        reducers.prepare(user, buckets, None, some_on_gpu=False)
        return any(bucket.is_shared for bucket in buckets)

    assert memory.run(4, live) == [False] * 4


def test_training_over_two_hosts(monkeypatch):
    rig.fix_counts(monkeypatch, (2, 1, 1, 3), (1, 0, 3, 1))
    alone, _ = train(4)
    on_hosts(monkeypatch, 0, 0, 1, 1)
    state, ways = train(4)
    assert ways == [SharedReducer]
    rig.assert_close(state, alone)


def refuse(*args):
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("where", ["attach", "offer"])
def test_where_one_rank_cannot_all_go_on_by_messages(where, by_messages, monkeypatch, capfd):
    if where == "attach":
        attach = shm.Segment.attach
        one = lambda ticket: refuse() if current().comm.rank == 2 else attach(ticket)  # noqa: E731
        monkeypatch.setattr(shm.Segment, "attach", one)
    else:
        offer = shm.Offer
        one = lambda num_bytes: refuse() if current().comm.rank == 1 else offer(num_bytes)  # noqa: E731
        monkeypatch.setattr("elche.training.shared_reducer.Offer", one)
    state, ways = train()
    assert ways == [HostReducer]
    rig.assert_equal(by_messages, state)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith(LINE)]
    assert lines == [f"{LINE}rank {2 if where == 'attach' else 1}: [Errno 13] Permission denied"]
