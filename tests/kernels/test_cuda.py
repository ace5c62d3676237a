"""What only a GPU can show: nothing waits for it, one launch per bucket, freed tensors, CUDA graphs."""

from __future__ import annotations

import pytest
import torch

from elche import kernels
from elche.errors import UsageError
from elche.kernels import SlotLayout, reference

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

DEVICE = torch.device("cuda", 0)
SIZES = [0, 1, 3, 7, 16, 17, 1023, 1024, 1025, 5001] * 33
CYCLES = 200_000_000  # about a tenth of a second: the host is far ahead of the stream


def gradients(seed=1):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(n, generator=draw).to(DEVICE) for n in SIZES]


def bucket():
    layout = SlotLayout.of(SIZES, torch.float32)
    return layout, torch.zeros(layout.total, device=DEVICE)


def expected(batches, weights):
    layout, judge_n = bucket()
    for k, (tensors, weight) in enumerate(zip(batches, weights, strict=True)):
        reference.scale_accumulate_(judge_n, layout, tensors, weight, accumulate=k > 0)
    return judge_n


def test_public_functions_have_the_reference_s_bits():
    layout, mine_n = bucket()
    tensors, flag = gradients(), torch.zeros(1, device=DEVICE)
    kernels.flag_nonfinite_(flag, tensors, layout)
    kernels.scale_accumulate_(mine_n, layout, tensors, 0.3, accumulate=False, nonfinite=flag)
    judge_n = expected([tensors], [0.3])
    assert torch.equal(mine_n, judge_n)
    kernels.unpack_(tensors, mine_n, layout, 2.0)
    assert torch.equal(tensors[-1], layout.views(judge_n)[-1] * 2.0)


def test_flat_functions_run_twice():
    """The second call finds the function where the first one may have put its module."""
    x_n, y_n = (torch.randn(5001, device=DEVICE) for _ in range(2))
    for _ in range(2):
        wire_n = torch.empty(5001, dtype=torch.bfloat16, device=DEVICE)
        kernels.cast_scale_(wire_n, x_n, 0.5)
        assert torch.equal(wire_n, (x_n * 0.5).bfloat16())
        total_n = kernels.weighted_sum(torch.stack([x_n, y_n]), torch.tensor([2.0, 3.0], device=DEVICE))
        assert torch.equal(total_n, x_n * 2.0 + y_n * 3.0)
        assert kernels.drift(x_n, y_n).tolist() == pytest.approx(
            [x.double().norm().item() for x in (x_n, y_n, x_n - y_n)], rel=1e-6
        )
        before_n = x_n.clone()
        kernels.outer_step_(x_n, y_n, 0.5)
        assert torch.equal(x_n, before_n - (before_n - y_n) * 0.5)
        kernels.lerp_(x_n, y_n, 1.0)
        assert torch.equal(x_n, y_n)
        y_n = before_n


def test_no_call_waits_for_the_device():
    layout, bucket_n = bucket()
    batches, flag = [gradients(1), gradients(2)], torch.zeros(1, device=DEVICE)
    kernels.scale_accumulate_(bucket_n, layout, gradients(3), 1.0, accumulate=False)  # compiles
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for k, tensors in enumerate(batches):
            kernels.flag_nonfinite_(flag, tensors, layout)
            kernels.scale_accumulate_(bucket_n, layout, tensors, 0.5, accumulate=k > 0, nonfinite=flag)
        kernels.unpack_(batches[0], bucket_n, layout, torch.tensor(2.0).to(DEVICE, non_blocking=True))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(bucket_n, expected([gradients(1), gradients(2)], [0.5, 0.5]))


def test_gradients_and_tables_may_be_freed_before_the_stream_has_run():
    layout, bucket_n = bucket()
    torch.cuda._sleep(CYCLES)
    for seed in (1, 2, 3):
        kernels.scale_accumulate_(bucket_n, layout, gradients(seed), 0.5, accumulate=seed > 1)
        torch.full((sum(SIZES),), torch.nan, device=DEVICE)  # takes the freed memory when it can
    assert torch.equal(bucket_n, expected([gradients(1), gradients(2), gradients(3)], [0.5] * 3))


def test_one_launch_per_bucket():
    layout, bucket_n = bucket()
    tensors, weight = gradients(), torch.tensor(0.5, device=DEVICE)
    kernels.scale_accumulate_(bucket_n, layout, tensors, weight, accumulate=True)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        kernels.scale_accumulate_(bucket_n, layout, tensors, weight, accumulate=True)
        torch.cuda.synchronize()
    launched = [event.name for event in profile.events() if event.device_type.name == "CUDA"]
    assert launched == ["scale_accumulate_kernel"]


def test_a_graph_is_replayed_with_other_gradients_and_another_weight():
    layout, bucket_n = bucket()
    tensors, weight = gradients(1), torch.tensor(0.5, device=DEVICE)
    kernels.scale_accumulate_(bucket_n, layout, tensors, weight, accumulate=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.scale_accumulate_(bucket_n, layout, tensors, weight, accumulate=False)
    kernels.scale_accumulate_(bucket_n, layout, gradients(3), weight, accumulate=False)  # replaces the table
    for tensor, new in zip(tensors, gradients(2), strict=True):
        tensor.copy_(new)
    weight.fill_(0.25)
    graph.replay()
    assert torch.equal(bucket_n, expected([gradients(2)], [0.25]))


def test_a_graph_may_not_capture_gradients_it_has_not_seen():
    layout, bucket_n = bucket()
    weight, seen, moved = torch.tensor(0.5, device=DEVICE), gradients(1), gradients(2)
    kernels.scale_accumulate_(bucket_n, layout, seen, weight, accumulate=False)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(UsageError, match="before the capture"), torch.cuda.graph(graph):
        kernels.scale_accumulate_(bucket_n, layout, moved, weight, accumulate=False)
