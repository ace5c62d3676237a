"""What sums the buckets: chosen alike on all ranks, with the same sums whichever it is."""

from __future__ import annotations

import threading
from unittest.mock import patch

import numpy as np
import pytest
import torch
import training_rig as rig
from fake_gpus import SIDE, STREAM, FakeGpus, FakeSide

from elche.comm import memory, nccl, nccl_ready
from elche.config import Environment
from elche.errors import CommError, DeadlineError
from elche.training import streams
from elche.training.buckets import make_buckets
from elche.training.host_reducer import HostReducer
from elche.world import current

LINE = "elche: gradients are summed through host memory, not by NCCL: "
GROUP = ["setDevice", "groupStart", "allReduce", "groupEnd"]


def train(n=3, epochs=1, after=lambda rank: None):
    """Train on n ranks; return every rank's parameters and buffers."""

    def script(rank):
        model = rig.mlp()
        rig.fit(model, rig.sgd(model), rig.samples(), epochs=epochs)
        after(rank)
        return rig.state_of(model)

    return rig.ranks(n, script)


@pytest.fixture
def on_cpus(monkeypatch):
    """What the same training comes to on CPUs, bit for bit."""
    rig.fix_counts(monkeypatch, (2, 1, 1))
    return train()[0]


def fails(error):
    def load(process):
        raise error

    return load


def test_cpus_are_asked_nothing(monkeypatch, capfd):
    monkeypatch.setattr(nccl_ready, "find", fails(AssertionError("asked for CuPy")))
    monkeypatch.setattr(nccl_ready, "agree", fails(AssertionError("asked the others")))
    rig.fix_counts(monkeypatch, (2, 1, 1))
    rig.assert_equal(*train())
    assert LINE not in capfd.readouterr().err


def test_nccl_sums_each_window(monkeypatch, capfd, on_cpus):
    """First all in one group, in PyTorch's own stream; then what the last batch begins early, beside it."""
    gpus = FakeGpus(monkeypatch)
    rig.assert_equal(on_cpus, *train())
    num_windows = 4  # 14 batches of 4 samples, 4 a window
    for rank in range(3):
        first = ["get_unique_id"] if rank == 0 else []
        expected = [*first, "setDevice", "init", *GROUP * num_windows, "abort", "destroy"]
        assert gpus.calls(rank) == expected
        sums = [call[2:] for call in gpus.cupys[rank].calls if call[0] == "allReduce"]
        own, total, *_ = sums[0]
        assert own != total, "out of place"
        numbers = 24, 7, 0  # 12, 4, 4 and 1 elements, each slot padded to 16 bytes; float32; sum
        assert sums[0] == (own, total, *numbers, STREAM)
        assert sums[1:3] == [(total, total, *numbers, SIDE)] * 2
        had_batch = rank < 2  # in the last window, of two batches
        assert sums[3:] == [(total if had_batch else own, total, *numbers, SIDE)]
    assert LINE not in capfd.readouterr().err


def test_it_is_exact_whatever_the_ranks_had(monkeypatch):
    FakeGpus(monkeypatch)
    rig.fix_counts(monkeypatch, (3, 1, 2), (0, 2, 1))
    make = lambda: (model := rig.mlp(), rig.sgd(model))  # noqa: E731
    rig.same_as_one_process(make, rig.samples(), epochs=2)


def test_a_rank_that_is_alone_needs_nobody(monkeypatch):
    rig.fix_counts(monkeypatch, (2,))
    alone = train(1)[0]
    gpus = FakeGpus(monkeypatch, load=fails(AssertionError("asked for CuPy")))
    rig.assert_equal(alone, train(1)[0])
    assert gpus.cupys == gpus.sides == {}


INSTALL = "pip install 'elche[cuda12]' (cupy-cuda12x)"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"load": fails(ModuleNotFoundError("cupy"))}, f"on ranks 0, 1, 2 CuPy is not installed: {INSTALL}"),
        ({"available": False}, "on ranks 0, 1, 2 CuPy finds no NCCL: pip install nvidia-nccl-cu12"),
        (
            {"built": 13000},
            f"on ranks 0, 1, 2 CuPy is for CUDA 13, PyTorch for CUDA 12: {INSTALL} in place of cupy-cuda13x",
        ),
        ({"driver": False}, "on ranks 0, 1, 2 CuPy finds no CUDA driver that it can use"),
        ({"cuda": None}, "on ranks 0, 1, 2 PyTorch was not built for CUDA"),
        ({"gpus": ["a", "b", "a"]}, "ranks 0, 2 share a GPU, which NCCL refuses"),
        ({"gpus": ["a", None, "b"]}, "rank 1 has its model on no GPU"),
        ({"faults": {2: {("init", 0): 5}}}, "rank 2: NCCL's init failed: NCCL_ERROR_INVALID_USAGE"),
        ({"faults": {0: {("get_unique_id", 0): 2}}}, "rank 0: get_unique_id failed: NCCL_ERROR_SYSTEM_ERROR"),
    ],
)
def test_without_nccl_one_line_says_why_and_the_sums_are_the_same(options, why, monkeypatch, capfd, on_cpus):
    monkeypatch.setattr(nccl, "CONNECT_SECONDS", 0.3)
    gpus = FakeGpus(monkeypatch, **options)
    rig.assert_equal(on_cpus, *train())
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("elche: gradients")]
    assert len(lines) == 1
    assert lines[0].startswith(LINE + why)
    for rank in range(3):
        assert gpus.calls(rank, "allReduce") == []
        assert gpus.calls(rank, "init", "abort", "destroy")[-2:] in ([], ["abort", "destroy"])


def test_the_shell_may_ask_for_the_hosts_way(monkeypatch, capfd, on_cpus):
    gpus = FakeGpus(monkeypatch)

    def script(rank):
        current().environment = Environment(backend="mpi")
        model = rig.mlp()
        rig.fit(model, rig.sgd(model), rig.samples())
        return rig.state_of(model)

    rig.assert_equal(on_cpus, *rig.ranks(3, script))
    assert capfd.readouterr().err.count(f"{LINE}on ranks 0, 1, 2 ELCHE_BACKEND=mpi asks for it\n") == 1
    assert gpus.cupys == {}


def test_a_failing_sum_ends_a_job_that_cannot_lose_ranks(monkeypatch):
    rig.fix_counts(monkeypatch, (2, 1, 1))
    gpus = FakeGpus(monkeypatch, faults={rank: {("groupEnd", 2): 6} for rank in range(3)})
    with pytest.raises(CommError, match=r"NCCL's all_reduce failed: NCCL_ERROR_REMOTE_ERROR.* of 3"):
        train()
    for rank in range(3):
        assert gpus.calls(rank)[-2:] == ["abort", "destroy"]
        assert len(gpus.calls(rank, "init")) == 1


def test_two_optimizers_have_a_communicator_each_and_none_is_left(monkeypatch):
    gpus = FakeGpus(monkeypatch)

    def script(rank):
        models = [rig.mlp() for _ in range(2)]
        both = [
            rig.distribute(model, rig.sgd(model), rig.samples(n))
            for model, n in zip(models, (8, 9), strict=True)
        ]
        for _ in range(2):
            for model, (optimizer, loader) in zip(models, both, strict=True):
                rig.loop(model, optimizer, loader)
        return [rig.state_of(model) for model in models]

    states = rig.ranks(2, script)
    for index in range(2):
        rig.assert_equal(states[0][index], states[1][index])
    assert gpus.close_left_open() == set()
    for rank in range(2):
        calls = [call[:2] for call in gpus.cupys[rank].calls if call[0] in ("init", "abort", "destroy")]
        assert calls[:2] == [("init", 0), ("init", 1)]
        for number in range(2):
            assert calls.index(("abort", number)) < calls.index(("destroy", number))
        assert len(calls) == 6


# The host's way.


def buckets_of(rank):
    """Three buckets of a rank, each of one parameter."""
    tensors = [torch.zeros(7), torch.zeros(3, dtype=torch.float64), torch.zeros(17)]
    buckets = make_buckets(tensors, cap_bytes=16)
    for index, bucket in enumerate(buckets):
        bucket.own_n.fill_(10 * index + rank)
    return buckets


class Recorder:
    """A communicator that notes in which order things come."""

    def __init__(self, comm, events, fail_at=None):
        self._comm, self._events, self._fail_at = comm, events, fail_at
        self.rank, self.size = comm.rank, comm.size
        self.deadline_seconds, self.watch = 5.0, None

    def all_reduce(self, sends, sums):
        self._events.append(("all_reduce", sends[0].ctypes.data))
        if len(self._events) == self._fail_at:
            raise CommError("processes [1] are gone")
        self._comm.all_reduce(sends, sums)


def test_copies_run_ahead_of_the_sums(monkeypatch):
    """All copies out are begun first; each bucket comes back while the next is summed."""

    def one(comm):
        side, buckets = own_side(), buckets_of(comm.rank)
        reducer = HostReducer(Recorder(comm, side.calls), one_by_one=True)
        extra, total = np.ones(2), np.zeros(2)
        reducer.all_reduce(buckets, [extra], [total], stands=True)
        pinned = [stage.own_n.data_ptr() for stage in reducer._staging._stages]
        back = [stage.sum_n.data_ptr() for stage in reducer._staging._stages]
        own = [bucket.own_n.data_ptr() for bucket in buckets]
        sums = [bucket.sum_n.data_ptr() for bucket in buckets]
        assert side.calls == [
            "follow",
            *(("copy", own[k], pinned[k]) for k in (2, 1, 0)),
            *(event for k in (2, 1, 0) for event in (("all_reduce", pinned[k]), ("copy", back[k], sums[k]))),
            ("all_reduce", extra.ctypes.data),
            "lead",
        ]
        return [bucket.sum_n.tolist() for bucket in buckets], total.tolist()

    own_side = own_sides(monkeypatch)
    for sums, total in memory.run(2, one):
        assert [set(values) for values in sums] == [{1.0}, {21.0}, {41.0}]
        assert total == [2.0, 2.0]


def own_sides(monkeypatch):
    """Let each thread have a side stream; return what gives the caller its own."""
    sides = {}

    def own(device=None):
        return sides.setdefault(threading.get_ident(), FakeSide())

    monkeypatch.setattr(streams, "beside", own)
    return own


def test_after_a_failure_no_copy_is_left_behind(monkeypatch):
    side = own_sides(monkeypatch)()
    buckets = buckets_of(0)
    comm = Recorder(memory.single(), side.calls, fail_at=7)  # at the second bucket
    with pytest.raises(CommError, match="are gone"):
        HostReducer(comm, one_by_one=True).all_reduce(buckets, [], [], stands=True)
    assert side.calls[-1] == "lead"
    assert buckets[1].own_n.tolist()[:3] == [10.0] * 3, "what was accumulated stays whole"


def test_a_copy_that_never_ends_meets_its_deadline(monkeypatch):
    side = own_sides(monkeypatch)()
    comm = Recorder(memory.single(), side.calls)
    comm.deadline_seconds = 0.1
    with (
        patch.object(side, "copy", lambda into, source: lambda: False),
        pytest.raises(DeadlineError, match=r"a copy from the GPU of rank 0 did not end within 0.1 s"),
    ):
        HostReducer(comm, one_by_one=True).all_reduce(buckets_of(0), [], [], stands=True)


def test_on_cpus_all_goes_at_once():
    buckets, events = buckets_of(1), []
    extra, total = np.ones(2), np.zeros(2)
    reducer = HostReducer(Recorder(memory.single(), events), one_by_one=False)
    reducer.all_reduce(buckets, [extra], [total], stands=True)
    assert events == [("all_reduce", buckets[0].own_n.data_ptr())]
    assert [bucket.sum_n.tolist()[0] for bucket in buckets] == [1.0, 11.0, 21.0]
    assert total.tolist() == [1.0, 1.0]
