"""Compressed gradients over NCCL: the bits of the host's way, and nothing waits for the device."""

from __future__ import annotations

import pytest
import torch
import training_rig as rig
from fake_gpus import SIDE, STREAM, FakeGpus

import elche
from elche import Compression
from elche.comm import memory, nccl
from elche.comm.nccl import NcclComm
from elche.config import Environment
from elche.errors import CommError
from elche.training import wire
from elche.training.buckets import make_buckets
from elche.training.nccl_wire import NcclTransport, NcclWireReducer
from elche.training.transport import AloneTransport, HostTransport
from elche.training.wire import Wire, WireSum
from elche.world import current

LINE = "elche: gradients are summed through host memory, not by NCCL: "
WAYS = {
    "bf16": Compression.bf16,
    "fp16": Compression.fp16,
    "bf16, fed back": Compression.bf16.with_error_feedback(),
    "fp16, fed back": Compression.fp16.with_error_feedback(),
}


def group(*calls):
    return ["setDevice", "groupStart", *calls, "groupEnd"]


def train(n=3, compression=Compression.fp16, dtype=torch.float32, epochs=2, before=lambda: None):
    """Train on n ranks, all with a batch in every window, whatever their speeds; return the parameters."""

    def script(rank):
        before()
        model, data = rig.mlp().to(dtype), rig.samples(48, dtype=dtype)
        loader = elche.DataLoader(data, 4, shuffle=True, seed=0)
        optimizer = elche.DistributedOptimizer(
            rig.sgd(model),
            model.named_parameters(),
            loader=loader,
            cadence=elche.Cadence(policy="sync"),
            compression=compression,
        )
        for _ in range(epochs):
            rig.loop(model, optimizer, loader)
        return rig.state_of(model)

    return rig.ranks(n, script)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_all_have_the_bits_of_the_hosts_way(n, way, monkeypatch, capfd):
    on_cpus = train(n, way)
    gpus = FakeGpus(monkeypatch)
    rig.assert_equal(on_cpus[0], *on_cpus[1:], *train(n, way))
    assert LINE not in capfd.readouterr().err
    assert all("send" in gpus.calls(rank) for rank in range(n) if n > 1)


def test_each_window_is_two_groups(monkeypatch):
    """The first in PyTorch's own stream, then in the one beside it, which backward need not wait for."""
    gpus = FakeGpus(monkeypatch)
    train(2, Compression.bf16, epochs=1)
    for rank in range(2):
        calls = gpus.calls(rank)
        begun = calls.index("init") + 1
        window = [*group("send", "recv", "send", "recv"), *group("allGather")]
        assert calls[begun:] == [*window * 6, "abort", "destroy"]  # 12 batches of 4 samples, two a window
        made = [call for call in gpus.cupys[rank].calls if call[0] in ("send", "recv", "allGather")]
        bytes_of_a_message = 16 + 2 * 16  # half of 24 elements, up to a multiple of 8
        assert [call[-4:-1] for call in made if call[0] == "send"] == [
            (bytes_of_a_message, 1, peer) for _ in range(6) for peer in range(2)
        ]
        assert {call[4:-1] for call in made if call[0] == "allGather"} == {(bytes_of_a_message, 1)}
        assert [call[-1] for call in made] == [STREAM] * 5 + [SIDE] * 25
        assert len({(call[0], *call[2:-1]) for call in made}) == 5, "room for messages is made once"


def test_double_precision_goes_by_all_reduce_as_it_is(monkeypatch):
    plain = train(2, Compression.none, torch.float64)
    gpus = FakeGpus(monkeypatch)
    rig.assert_equal(*plain, *train(2, Compression.bf16, torch.float64))
    assert set(gpus.calls(0, "send", "allGather", "allReduce")) == {"allReduce"}


def test_without_nccl_they_go_through_host_memory(monkeypatch, capfd):
    on_cpus = train()
    gpus = FakeGpus(monkeypatch)

    def by_mpi():
        current().environment = Environment(backend="mpi")

    rig.assert_equal(on_cpus[0], *train(before=by_mpi))
    assert gpus.cupys == {}
    assert f"{LINE}on ranks 0, 1, 2 ELCHE_BACKEND=mpi asks for it\n" in capfd.readouterr().err


def test_a_rank_that_is_alone_asks_nobody_and_rounds_as_on_a_cpu(monkeypatch):
    way = WAYS["fp16, fed back"]
    on_cpu = train(1, way)
    gpus = FakeGpus(monkeypatch)
    rig.assert_equal(*on_cpu, *train(1, way))
    assert gpus.cupys == gpus.sides == {}


@pytest.mark.parametrize(
    "where", [("send", 2), ("recv", 3), ("allGather", 1), ("groupEnd", 2), ("groupEnd", 3)]
)
def test_a_failing_step_ends_a_job_that_cannot_lose_ranks(where, monkeypatch):
    gpus = FakeGpus(monkeypatch, faults={rank: {where: 6} for rank in range(2)})
    with pytest.raises(CommError, match=r"NCCL's all_reduce failed: NCCL_ERROR_REMOTE_ERROR.* of 2"):
        train(2)
    for rank in range(2):
        assert gpus.calls(rank)[-2:] == ["abort", "destroy"]


# Sums, without a training.


def buckets_of(rank):
    """Two float32 buckets around one of float64, each of one parameter."""
    tensors = [torch.zeros(37), torch.zeros(3, dtype=torch.float64), torch.zeros(1)]
    buckets = make_buckets(tensors, cap_bytes=16)
    for bucket in buckets:
        bucket.own_n.fill_(30_005.0 if rank % 2 else 1e-7)
    return buckets


def sums_by_nccl(gpus, n, seen):
    """Let `seen(reducer, buckets, wire)` look at a sum that was made on each of n ranks."""

    def one(rank):
        host = current().comm
        comm = NcclComm(gpus.cupy(rank), host, rank)
        assert comm.connect() is None
        wire = Wire(Compression.fp16.with_error_feedback())
        reducer, buckets = NcclWireReducer(comm, torch.device("cpu"), wire), buckets_of(rank)
        try:
            reducer.all_reduce(buckets, [], [], stands=True)
            return seen(reducer, buckets, wire)
        finally:
            reducer.end()

    return rig.ranks(n, one)


def test_large_ones_stay_finite_beside_small_ones(monkeypatch):
    def sums(reducer, buckets, wire):
        return [bucket.sum_n for bucket in buckets]

    first, *others = sums_by_nccl(FakeGpus(monkeypatch), 4, sums)
    assert [bool((sum_n - 60_010).abs().max() < 60_010 * 2**-10) for sum_n in first] == [True] * 3
    for other in others:
        assert all(map(torch.equal, first, other))


def test_what_is_rounded_off_is_owed_once_the_window_counts(monkeypatch):
    def owed_of(reducer, buckets, wire):
        before = dict(wire._owed)
        wire.settle(is_used=True)
        return before, wire._owed, [bucket.own_n for bucket in buckets], [bucket.sum_n for bucket in buckets]

    told = sums_by_nccl(FakeGpus(monkeypatch), 2, owed_of)
    for index in (0, 2):
        exact = sum(own[index].double() for _, _, own, _ in told)
        lost = exact - told[0][3][index].double()
        assert float(lost.abs().max()) == pytest.approx(5.0, abs=1e-3), (
            "to 30,000: float16 has every 16th there"
        )
        owed = sum(owed[(index,)].double() for _, owed, _, _ in told)
        torch.testing.assert_close(owed, lost, rtol=0, atol=2e-3)  # float32's last place
    assert all(before == {} and sorted(owed) == [(0,), (2,)] for before, owed, _, _ in told)


def test_nccl_is_given_up_and_what_is_owed_goes_on(monkeypatch):
    """A wire outlives its way: on another one it sums as if it had begun there."""

    def one(comm):
        wires = [Wire(WAYS["fp16, fed back"]) for _ in range(2)]
        ways = (HostTransport(comm), AloneTransport()), (AloneTransport(), HostTransport(comm))
        sums = []
        for wire_, steps in zip(wires, ways, strict=True):
            for step in steps:
                sum_n = torch.empty(100)
                wire_.all_reduce(step, (0,), torch.linspace(0.1, 0.2, 100), sum_n)
                wire_.settle(is_used=True)
                sums.append(sum_n)
        return sums

    (sums,) = memory.run(1, one)
    assert torch.equal(sums[0], sums[2])
    assert torch.equal(sums[1], sums[3])
    assert not torch.equal(sums[0], sums[1]), "something was owed"


class Unread:
    """A transport of three ranks whose messages nobody can read."""

    rank, size = 1, 3

    def all_to_all(self, sent_wb):
        return torch.empty_like(sent_wb)

    def all_gather(self, sent_b):
        return torch.empty(3, len(sent_b), dtype=torch.uint8, device=sent_b.device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_nothing_waits_for_the_device(dtype, monkeypatch):
    """A meta tensor has no numbers: whoever asks for one fails. The kernels' own tests are elsewhere."""
    own_n, sum_n, lost_n = (torch.empty(1000, device="meta") for _ in range(3))
    with pytest.raises(RuntimeError, match="meta"):
        float(own_n[0])

    def summed(shards_wn, units_w):
        assert units_w.is_contiguous()
        return shards_wn[0].float()

    monkeypatch.setattr(wire, "cast_scale_", lambda out_n, in_n, scale: out_n.copy_(in_n * scale))
    monkeypatch.setattr(wire, "weighted_sum", summed)
    WireSum(Unread(), dtype, own_n).all_reduce(own_n, sum_n, lost_n)


def test_messages_arrive_where_they_did_before(monkeypatch):
    """Room is made once for a length, and kept: NCCL may still write there."""

    def rooms(reducer, buckets, wire):
        transport = reducer._transport
        sent_wb = torch.zeros(2, 64, dtype=torch.uint8)
        return [transport.all_to_all(sent_wb).data_ptr(), transport.all_gather(sent_wb[0]).data_ptr()], [
            transport.all_to_all(sent_wb[:, :32].contiguous()).data_ptr()
        ]

    for (first, second), (shorter,) in sums_by_nccl(FakeGpus(monkeypatch), 2, rooms):
        assert first == second != shorter


def test_a_transport_that_failed_carries_nothing(monkeypatch):
    monkeypatch.setattr(nccl, "CONNECT_SECONDS", 0.3)
    gpus = FakeGpus(monkeypatch, faults={0: {("init", 0): 2}})

    def one(rank):
        comm = NcclComm(gpus.cupy(rank), current().comm, rank)
        assert "NCCL_ERROR_SYSTEM_ERROR" in comm.connect()
        transport = NcclTransport(comm, torch.device("cpu"))
        with pytest.raises(CommError, match="cannot all_reduce by NCCL"):
            transport.all_gather(torch.zeros(16, dtype=torch.uint8))

    rig.ranks(1, one)
