"""The real NCCL, streams and pinned memory: on a machine with a GPU, and with two where ranks are to meet."""

from __future__ import annotations

import time

import pytest
import torch
import training_rig as rig

from elche.comm import memory, nccl, nccl_ready
from elche.comm.nccl import NcclComm
from elche.training import streams
from elche.training.buckets import make_buckets
from elche.training.host_reducer import HostReducer
from elche.training.reducer import NcclReducer
from elche.world import current

NUM_GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = pytest.mark.skipif(NUM_GPUS == 0, reason="no GPU on this machine")


@pytest.fixture(scope="module")
def cupy():
    found, reason = nccl_ready.find(torch.version.cuda)
    if reason is not None:
        pytest.skip(reason)
    return found


def buckets_on(device, rank):
    """Buckets of several sizes, filled by rank, in float32 and float64."""
    tensors = [torch.zeros(1 << 20), torch.zeros(5), torch.zeros(1001, dtype=torch.float64)]
    buckets = make_buckets([tensor.to(device) for tensor in tensors], cap_bytes=1 << 20)
    for index, bucket in enumerate(buckets):
        bucket.own_n.fill_(index + 10 * rank)
    return buckets


def check_sums(buckets, n):
    for index, bucket in enumerate(buckets):
        assert set(bucket.sum_n.tolist()) == {index * n + 10.0 * (n * (n - 1) // 2)}


def reduce_by_nccl(host, cupy, number):
    """Sum twice, on two communicators, one after the other, as after a loss."""
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    for _ in range(2):
        reducer = NcclReducer(NcclComm(cupy, host, number), device)
        assert reducer.comm.connect() is None
        buckets = buckets_on(device, host.rank)
        reducer.all_reduce(buckets, [], [], stands=True)
        check_sums(buckets, host.size)
        for stands in (True, False):
            sum_early(reducer, buckets, stands=stands)
            check_sums(buckets, host.size)
        reducer.end()


def sum_early(reducer, buckets, *, stands):
    """Begin with the last bucket before the others; the guess is wrong where it is not to stand."""
    buckets[-1].sum_n.copy_(buckets[-1].own_n if stands else torch.full_like(buckets[-1].own_n, 7.0))
    reducer.begin(buckets[-1])
    torch.cuda.synchronize()
    reducer.begin_rest(buckets, stands=stands)
    reducer.all_reduce(buckets, [], [], stands=stands)


def test_nccl_with_one_rank(cupy):
    reduce_by_nccl(memory.single(deadline_seconds=60.0), cupy, 0)


def test_nccl_between_gpus(cupy):
    if NUM_GPUS < 2:
        pytest.skip(f"{NUM_GPUS} GPU: NCCL takes one rank on each")
    memory.run(2, lambda host: reduce_by_nccl(host, cupy, host.rank))


def test_a_rank_that_never_comes_is_not_waited_for_longer_than_told(cupy, monkeypatch):
    """The other rank agrees to all, and does not call NCCL."""
    monkeypatch.setattr(nccl, "CONNECT_SECONDS", 3.0)
    monkeypatch.setattr(NcclComm, "_init", _only_rank_0(NcclComm._init))
    begun = time.monotonic()

    def live(host):
        return NcclComm(cupy, host, 0).connect()

    assert memory.run(2, live, timeout_seconds=60.0) == ["rank 0: NCCL's init did not end in time"] * 2
    assert time.monotonic() - begun < 3.0 + nccl.ABORT_SECONDS


def _only_rank_0(init):
    def call(comm, unique):
        if comm.host.rank == 0:
            init(comm, unique)

    return call


@pytest.mark.parametrize("n", [1, 2])
def test_through_pinned_memory(n):
    def live(host):
        buckets = buckets_on(torch.device("cuda", 0), host.rank)
        reducer = HostReducer(host, one_by_one=True)
        for _ in range(3):
            reducer.all_reduce(buckets, [], [], stands=True)
            check_sums(buckets, n)

    memory.run(n, live)


def test_a_gpu_is_known():
    gpu = streams.gpu_of(torch.device("cuda", 0))
    assert gpu.number == 0
    assert len(gpu.identity) > 8
    assert streams.mark(torch.device("cuda", 0))() in (True, False)


def test_two_ranks_on_one_gpu_sum_as_ranks_on_cpus_do(monkeypatch, capfd):
    rig.fix_counts(monkeypatch, (2, 1))

    def script(device):
        def train(rank):
            current().device = torch.device(device)
            model = rig.mlp().to(device)
            samples = [(x.to(device), y.to(device)) for x, y in rig.samples()]
            rig.fit(model, rig.sgd(model), samples)
            return {name: tensor.cpu() for name, tensor in rig.state_of(model).items()}

        return train

    on_gpu = rig.ranks(2, script("cuda:0"))
    rig.assert_equal(*on_gpu)
    told = [line for line in capfd.readouterr().err.splitlines() if "not by NCCL" in line]
    assert len(told) == 1
    with pytest.warns(RuntimeWarning, match="on the CPU of a machine with a GPU"):
        on_cpu = rig.ranks(2, script("cpu"))
    rig.assert_close(on_gpu[0], on_cpu[0], rtol=1e-5)
