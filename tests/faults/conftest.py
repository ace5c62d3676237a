"""Lets these tests, and the script that they start under mpirun, import each other and the laws' `trials`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "laws")]
pytest.register_assert_rewrite("fault_laws", "trials")
