"""Flat tensors of which one starts off a 16-byte boundary give the same numbers as on it.

In the interpreter each address that a kernel takes for a multiple of 16 is checked besides (conftest.py).
"""

from __future__ import annotations

import pytest
import torch
from sides import FASTEST, WITH_TRITON, draw, shifted, tensor

from elche import kernels
from elche.kernels import chunk, sum_shards

N = 2 * chunk.CHUNK + 8  # a multiple of 16 bytes: also rows of so many lie on boundaries
FLOAT = (torch.float32, torch.float32)


def weighted_sum(out_n, shards_n):
    given = shards_n.view(1, -1), tensor([0.3])
    if WITH_TRITON:
        sum_shards.launch(out_n, *given)
    else:
        kernels.weighted_sum(*given, out=out_n)


def outer_step_(global_n, consensus_n, velocity_n):
    FASTEST.outer_step_(global_n, consensus_n, 0.7, momentum=0.9, velocity_n=velocity_n, nesterov=True)


FUNCTIONS = {
    "to the wire": (
        (torch.bfloat16, torch.float32),
        lambda out_n, in_n: FASTEST.cast_scale_(out_n, in_n, 0.5),
    ),
    "from the wire": (
        (torch.float32, torch.float16),
        lambda out_n, in_n: FASTEST.cast_scale_(out_n, in_n, 0.5),
    ),
    "weighted_sum": (FLOAT, weighted_sum),
    "drift": (FLOAT, lambda pre_n, post_n: FASTEST.drift(pre_n, post_n)),
    "lerp_": (FLOAT, lambda x_n, y_n: FASTEST.lerp_(x_n, y_n, 0.3)),
    "outer_step_": ((*FLOAT, torch.float32), outer_step_),
}


def outcome(name, offsets):
    """What the function returns and leaves in its tensors, which begin so many elements past a boundary."""
    dtypes, call = FUNCTIONS[name]
    given = [
        shifted(draw(N, dtype, seed), offset)
        for seed, (dtype, offset) in enumerate(zip(dtypes, offsets, strict=True))
    ]
    result = call(*given)
    return [*given, *([] if result is None else [result])]


@pytest.mark.parametrize("offset", [1, 2])
@pytest.mark.parametrize(
    ("name", "which"), [(name, k) for name, (dtypes, _) in FUNCTIONS.items() for k in range(len(dtypes))]
)
def test_each_tensor_may_start_anywhere(name, which, offset):
    offsets = [offset if k == which else 0 for k in range(len(FUNCTIONS[name][0]))]
    there, here = outcome(name, offsets), outcome(name, [0] * len(offsets))
    assert there[which].data_ptr() % 16 != 0
    assert all(torch.equal(a, b) for a, b in zip(there, here, strict=True))
