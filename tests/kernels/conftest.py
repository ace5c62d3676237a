"""Lets the kernels' tests share `sides` and `targets`, and holds kernels to what they say of addresses."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def promised(monkeypatch):
    """The addresses that kernels took for multiples of 16. A GPU faults where one is not."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return []
    from triton.runtime.interpreter import TensorHandle

    addresses = []

    def check(handle, name, values):
        assert (name, values) == ("tt.divisibility", [16])
        addresses.extend(handle.data.tolist())
        assert addresses[-1] % 16 == 0, "a kernel promises an alignment that its tensor has not"

    monkeypatch.setattr(TensorHandle, "set_attr", check)
    return addresses
