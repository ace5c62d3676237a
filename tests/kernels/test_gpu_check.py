"""The script that checks what only a GPU can show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: the script would check it for minutes")
def test_without_a_gpu_it_says_so_and_ends_with_0():
    kept = ROOT / "benchmarks" / "results" / "gpu_check.md"
    before = kept.stat().st_mtime_ns if kept.exists() else None
    done = subprocess.run(
        [str(ROOT / "benchmarks" / "gpu_check.sh")],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no GPU was checked: torch ")
    assert (kept.stat().st_mtime_ns if kept.exists() else None) == before  # a GPU's report is not overwritten
