"""Lets these tests, like the scripts that mpirun starts beside them, `import training_rig`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Ranks are threads here: each with a pool of its own would only fight for the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
