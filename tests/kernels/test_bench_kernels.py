"""The benchmark of the kernels: its rivals do the same work, and every method of it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from kernel_cases import OPERATIONS, Case, flat

CPU = torch.device("cpu")
NUMELS = [16, 4096, 3, 1025]
IN_SLOTS = ("elche", "foreach", "loop")  # the others write to a bucket without padding
METHODS = [
    (operation, method) for operation, (ways, _) in OPERATIONS.items() for method in ways(Case(NUMELS, CPU))
]


@pytest.mark.parametrize(("operation", "method"), METHODS)
def test_every_rival_does_the_work_that_is_timed(operation, method):
    case = Case(NUMELS, CPU)
    before = torch.cat([grad.flatten() for grad in case.grads])
    case.bucket_n.fill_(2.0)
    case.dense_n.fill_(2.0)
    OPERATIONS[operation][0](case)[method]()
    # That one scales the gradients themselves, by 1, so that they do not vanish from repeat to repeat.
    weight = 1.0 if (operation, method) == ("accumulate", "foreach") else 0.3
    slots = torch.cat([view.flatten() for view in case.views])
    written, expected = {
        "accumulate": (slots if method in IN_SLOTS else case.dense_n, 2.0 + weight * before),
        "overwrite": (slots if method in IN_SLOTS else case.dense_n, weight * before),
        "unpack": (torch.cat([grad.flatten() for grad in case.grads]), torch.full_like(before, 2.0)),
    }[operation]
    torch.testing.assert_close(written, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", flat(Case(NUMELS, CPU)))
def test_every_flat_function_runs(name):
    call, _ = flat(Case(NUMELS, CPU))[name]
    call()
