"""The outer optimizer's step on the pseudo-gradient."""

from __future__ import annotations

import pytest
import torch
from sides import FASTEST, SENTINEL, SIDES, SIZES, WITH_TRITON, draw, hosted, tensor

from elche import kernels
from elche.errors import ConfigError
from elche.kernels import reference

BUCKETS = [torch.float32, torch.float64]


@SIDES
@pytest.mark.parametrize("dtype", BUCKETS)
@pytest.mark.parametrize(
    ("velocity", "nesterov", "expected"),
    [(None, False, [8.0]), ([2.0], False, [7.5, 5.0]), ([2.0], True, [6.75, 5.0])],
)
def test_a_worked_example(side, velocity, nesterov, expected, dtype):
    global_n, velocity_n = tensor([10.0], dtype), None if velocity is None else tensor(velocity, dtype)
    momentum = 0.0 if velocity is None else tensor(0.5)
    side.outer_step_(
        global_n, tensor([6.0], dtype), 0.5, momentum=momentum, velocity_n=velocity_n, nesterov=nesterov
    )
    assert [*global_n.tolist(), *([] if velocity_n is None else velocity_n.tolist())] == expected


@SIDES
@pytest.mark.parametrize("nesterov", [False, True])
def test_two_steps_are_torch_s_sgd_on_the_pseudo_gradient(side, nesterov):
    parameter = torch.nn.Parameter(draw(100))
    sgd = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=nesterov)
    global_n, velocity_n = draw(100), torch.zeros_like(draw(100))
    for seed in (2, 3):
        consensus_n = draw(100, seed=seed)
        parameter.grad = parameter.detach() - consensus_n
        sgd.step()
        side.outer_step_(global_n, consensus_n, 0.7, momentum=0.9, velocity_n=velocity_n, nesterov=nesterov)
    torch.testing.assert_close(global_n, parameter.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", BUCKETS)
@pytest.mark.parametrize(("with_velocity", "nesterov"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("n", SIZES)
def test_any_tensors(n, with_velocity, nesterov, dtype, offset):
    """Exact where nothing is fused; FMA leaves out the rounding of two products and moves what follows."""
    sides = []
    for step_ in (FASTEST.outer_step_, reference.outer_step_):
        global_n, consensus_n = draw(n, dtype, 1, offset), draw(n, dtype, 2, offset)
        velocity_n = draw(n, dtype, 3, offset) if with_velocity else None
        momentum = 0.9 if with_velocity else 0.0
        step_(global_n, consensus_n, 0.7, momentum=momentum, velocity_n=velocity_n, nesterov=nesterov)
        sides.append([global_n] if velocity_n is None else [global_n, velocity_n])
    bound = 0.0 if WITH_TRITON else 8 * torch.finfo(dtype).eps  # of numbers below 8
    for mine_n, judge_n in zip(*sides, strict=True):
        torch.testing.assert_close(mine_n, judge_n, rtol=bound, atol=bound)


def test_what_lies_beside_unaligned_tensors():
    (global_n, host), (velocity_n, velocity_host) = (hosted(5001, torch.float32) for _ in range(2))
    global_n.zero_()
    velocity_n.zero_()
    FASTEST.outer_step_(global_n, draw(5001), 1.0, momentum=0.5, velocity_n=velocity_n)
    assert [host[0], host[-1], velocity_host[0], velocity_host[-1]] == [SENTINEL] * 4
    assert torch.equal(global_n, draw(5001))


def test_lr_1_without_momentum_is_the_plain_average():
    global_n = torch.tensor([1.0, 2.0, 3.0])
    kernels.outer_step_(global_n, torch.tensor([3.0, 2.5, -1.0]), 1.0)
    assert global_n.tolist() == [3.0, 2.5, -1.0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"momentum": 0.9}, "momentum 0.9"),
        ({"nesterov": True}, "nesterov True"),
        ({"velocity_n": torch.zeros(3)}, r"velocity_n \(3,\)"),
        ({"velocity_n": torch.zeros(2).double()}, "one dtype"),
    ],
)
def test_bad_input_is_refused_by_name(settings, words):
    with pytest.raises(ConfigError, match=words):
        kernels.outer_step_(torch.zeros(2), torch.zeros(2), 1.0, **settings)
