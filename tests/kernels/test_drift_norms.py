"""Three norms in one pass."""

from __future__ import annotations

import math

import pytest
import torch
from sides import FASTEST, SIDES, SIZES, draw, tensor

from elche import kernels
from elche.errors import ConfigError
from elche.kernels import reference
from elche.kernels.foreach import BLOCK


@SIDES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_worked_example(side, dtype):
    norms = side.drift(tensor([3.0, 4.0], dtype), tensor([3.0, 0.0], dtype))
    assert norms.tolist() == [5.0, 3.0, 4.0]
    assert norms.dtype == torch.float64


@SIDES
def test_nothing_has_no_norm_and_inf_and_nan_show(side):
    assert side.drift(tensor([]), tensor([])).tolist() == [0.0, 0.0, 0.0]
    assert side.drift(tensor([math.inf, 1.0]), tensor([1.0, 1.0])).tolist()[::2] == [math.inf, math.inf]
    one, two, three = side.drift(tensor([1.0, 1.0]), tensor([1.0, math.nan])).tolist()
    assert one == math.sqrt(2.0)
    assert math.isnan(two)
    assert math.isnan(three)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("n", [*SIZES, BLOCK + 1])
def test_any_tensors(n, dtype, close, offset):
    pre_n, post_n = draw(n, dtype, 1, offset), draw(n, dtype, 2, offset)
    expected = reference.drift(pre_n, post_n)
    assert FASTEST.drift(pre_n, post_n).tolist() == pytest.approx(expected.tolist(), rel=close)


def test_equal_tensors_have_equal_bits():
    first, *others = (FASTEST.drift(draw(5001, seed=1), draw(5001, seed=2)).tolist() for _ in range(3))
    assert others == [first, first]


def test_a_replica_that_did_not_move_has_drift_0():
    assert FASTEST.drift(draw(5001), draw(5001))[2] == 0.0


@pytest.mark.parametrize(
    ("pre_n", "post_n", "words"),
    [
        (torch.zeros(2), torch.zeros(3), r"\(2,\).*\(3,\)"),
        (torch.zeros(2), torch.zeros(2).double(), "one dtype"),
        (torch.zeros(2).half(), torch.zeros(2).half(), "float16"),
        (torch.zeros(2, 2), torch.zeros(2, 2), "flat"),
    ],
)
def test_bad_input_is_refused_by_name(pre_n, post_n, words):
    with pytest.raises(ConfigError, match=words):
        kernels.drift(pre_n, post_n)
