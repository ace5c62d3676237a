"""Whole numbers that tell whether a bucket's bits have changed."""

from __future__ import annotations

import pytest
import torch

from elche.training.early import fingerprint


@pytest.mark.parametrize("numel", [0, 4, 1020, 1024, 1028, 5004])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_fingerprint_tells_changes(numel, dtype):
    value_n = torch.linspace(-1.0, 1.0, numel, dtype=dtype)
    whole = numel * dtype.itemsize // 4
    printed = fingerprint(value_n)
    assert printed.dtype is torch.int64
    sums = 1024 + whole // 1024 if whole >= 1024 else 0
    assert printed.numel() == sums + whole % 1024
    assert torch.equal(printed, fingerprint(value_n.clone()))
    changes = [lambda x: x * 2, lambda x: -x, lambda x: x.clamp(-0.5, 0.5), lambda x: x + 1e-3]
    for change in changes if numel else []:
        assert not torch.equal(printed, fingerprint(change(value_n)))
    for index in range(0, numel, 97):
        other_n = value_n.clone()
        other_n[index] = torch.nextafter(other_n[index], torch.tensor(9.0, dtype=dtype))
        assert not torch.equal(printed, fingerprint(other_n))


def test_a_fingerprint_has_no_overflow():
    value_n = torch.full((1024 * 64,), -0.0)  # the least whole number of 32 bits, in each place
    assert fingerprint(value_n).tolist() == [-(2**31) * 64] * 1024 + [-(2**31) * 1024] * 64
