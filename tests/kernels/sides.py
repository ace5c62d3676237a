"""The implementations that the tests of flat kernels hold against each other, and the tensors they get.

Triton's side is there on a GPU and in Triton's interpreter, see test_interpreter.py.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from elche import kernels
from elche.kernels import cast_scale, chunk, drift_norms, lerp, outer_step, reference, sum_shards

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu") if INTERPRETED or not torch.cuda.is_available() else torch.device("cuda", 0)
WITH_TRITON = INTERPRETED or DEVICE.type == "cuda"
SIZES = [0, 1, 3, 7, 16, 17, 1023, 1024, 1025, 5001, chunk.CHUNK, 2 * chunk.CHUNK + 1]
SENTINEL = 9.0


def sum_shards_launched(shards_wn, weights_w):
    out_n = torch.full((shards_wn.shape[1],), SENTINEL, device=DEVICE)
    sum_shards.launch(out_n, shards_wn, weights_w)
    return out_n


def outer_step_launched(global_n, consensus_n, lr, *, momentum=0.0, velocity_n=None, nesterov=False):
    outer_step.launch(global_n, consensus_n, lr, momentum, velocity_n, nesterov=nesterov)


TRITON = SimpleNamespace(
    cast_scale_=cast_scale.launch,
    weighted_sum=sum_shards_launched,
    drift=drift_norms.launch,
    outer_step_=outer_step_launched,
    lerp_=lerp.launch,
)
# The interpreter's process has the plain path's tests from the other one.
FAST = {"triton": TRITON} if WITH_TRITON else {"cpu": kernels}
SIDES = pytest.mark.parametrize("side", [*FAST.values(), reference], ids=[*FAST, "reference"])
FASTEST = next(iter(FAST.values()))


def draw(n, dtype=torch.float32, seed=1, offset=0):
    """Random numbers, whose memory begins `offset` elements past a 16-byte boundary."""
    host = torch.randn(n + offset, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)
    return host[offset:]


def shifted(tensor, offset=1):
    """The same numbers, `offset` elements past where an allocation begins."""
    host = torch.empty(tensor.numel() + offset, dtype=tensor.dtype, device=tensor.device)
    host[offset:] = tensor.flatten()
    return host[offset:].view(tensor.shape)


def hosted(n, dtype):
    """A flat tensor one element past a 16-byte boundary, with a sentinel on either side, and all of it."""
    host = torch.full((n + 2,), SENTINEL, dtype=dtype, device=DEVICE)
    return host[1:-1], host


def tensor(values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def same(a, b):
    """Equal bits, or nan on both sides."""
    return (
        a.dtype == b.dtype
        and torch.equal(a.nan_to_num(nan=12345.0), b.nan_to_num(nan=12345.0))
        and bool((a.isnan() == b.isnan()).all())
    )
