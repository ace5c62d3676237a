"""Compression on a real GPU: the bits of a CPU, no wait for the device, and messages by the real NCCL."""

from __future__ import annotations

import pytest
import torch

from elche import Compression
from elche.comm import memory, nccl_ready
from elche.comm.nccl import NcclComm
from elche.training.buckets import make_buckets
from elche.training.nccl_wire import NcclWireReducer
from elche.training.transport import AloneTransport, HostTransport
from elche.training.wire import Wire, WireSum

NUM_GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = pytest.mark.skipif(NUM_GPUS == 0, reason="no GPU on this machine")
DTYPES = [torch.bfloat16, torch.float16]
ODD = 5001


class ThroughHost:
    """Ranks as threads that share a GPU: their messages go through host memory."""

    def __init__(self, comm):
        self.rank, self.size, self._host = comm.rank, comm.size, HostTransport(comm)

    def all_to_all(self, sent_wb):
        return self._host.all_to_all(sent_wb.cpu()).to(sent_wb.device)

    def all_gather(self, sent_b):
        return self._host.all_gather(sent_b.cpu()).to(sent_b.device)


def bucket_of(rank, numel=ODD):
    """Numbers over all that float32 can hold."""
    generator = torch.Generator().manual_seed(rank)
    powers_n = torch.randint(-140, 100, (numel,), generator=generator)
    return torch.ldexp(torch.randn(numel, generator=generator), powers_n)


def summed(transport, own_n, dtype):
    sum_n, lost_n = torch.empty_like(own_n), torch.empty_like(own_n)
    WireSum(transport, dtype, own_n).all_reduce(own_n, sum_n, lost_n)
    return torch.cat([sum_n, lost_n]).cpu()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_a_gpu_sums_to_the_bits_of_a_cpu(n, dtype):
    def one(comm):
        own_n = bucket_of(comm.rank)
        on_cpu = summed(HostTransport(comm), own_n, dtype)
        return on_cpu, summed(ThroughHost(comm), own_n.cuda(), dtype)

    for on_cpu, on_gpu in memory.run(n, one, timeout_seconds=60.0):
        assert torch.equal(on_gpu.view(torch.int32), on_cpu.view(torch.int32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_waits_for_the_device(dtype):
    own_n = bucket_of(0).cuda()
    sum_n, lost_n, summing = own_n.clone(), own_n.clone(), WireSum(AloneTransport(), dtype, own_n)
    summing.all_reduce(own_n, sum_n, lost_n)  # its kernels are compiled
    torch.cuda.set_sync_debug_mode("error")
    try:
        summing.all_reduce(own_n, sum_n, lost_n)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(sum_n + lost_n, own_n, rtol=1e-6, atol=0)


def test_what_a_gpu_owes_is_owed_on_the_hosts_way_too():
    wire, own_n, sums = Wire(Compression.bf16.with_error_feedback()), torch.full((8,), 1 + 2.0**-9), []
    for tensor_n, transport in ((own_n.cuda(), AloneTransport()), (own_n, HostTransport(memory.single()))):
        for _ in range(2):
            wire.all_reduce(transport, (0,), tensor_n, sum_n := torch.empty_like(tensor_n))
            wire.settle(is_used=True)
            sums.append(sum_n[0].item())
    assert sums == [1.0, 1.0, 1 + 2.0**-7, 1.0], "bfloat16's last place there is four times what is lost"


def reduce_by_nccl(host, cupy):
    """Return what NCCL makes of two windows, and what the host's way does."""
    device = torch.device("cuda", host.rank)
    torch.cuda.set_device(device)
    reducer = NcclWireReducer(NcclComm(cupy, host, host.rank), device, on_gpu := Wire(Compression.fp16))
    assert reducer.comm.connect() is None
    like = [torch.zeros(ODD), torch.zeros(7, dtype=torch.float64)]
    buckets = make_buckets([tensor.to(device) for tensor in like])
    outcomes = []
    try:
        for window in range(2):
            for bucket in buckets:
                bucket.own_n.copy_(bucket_of(host.rank + 8 * window, bucket.own_n.numel()))
            if window:  # beside the current stream
                reducer.begin_rest(buckets, stands=True)
            reducer.all_reduce(buckets, [], [], stands=True)
            on_gpu.settle(is_used=True)
            expected_n = torch.empty(buckets[0].own_n.numel())
            Wire(Compression.fp16).all_reduce(HostTransport(host), (0,), buckets[0].own_n.cpu(), expected_n)
            outcomes.append((buckets[0].sum_n.cpu(), expected_n))
    finally:
        reducer.end()
    return outcomes


@pytest.mark.parametrize("n", [1, 2])
def test_nccl_carries_the_messages(n):
    if n > NUM_GPUS:
        pytest.skip(f"{NUM_GPUS} GPU: NCCL takes one rank on each")
    cupy, reason = nccl_ready.find(torch.version.cuda)
    if reason is not None:
        pytest.skip(reason)
    for outcomes in memory.run(n, reduce_by_nccl, cupy, timeout_seconds=90.0):
        assert all(torch.equal(sum_n, expected_n) for sum_n, expected_n in outcomes)
