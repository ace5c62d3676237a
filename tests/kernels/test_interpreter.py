"""The Triton kernels without a GPU: test_triton.py again, in a process that sets TRITON_INTERPRET first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

CASES = Path(__file__).with_name("test_triton.py")


def test_every_kernel_case_passes_in_the_interpreter():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(CASES), "-p", "no:cacheprovider"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=CASES.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed, skipped = re.search(r"(\d+) passed, (\d+) skipped", done.stdout).groups()
    assert int(passed) >= 70
    assert int(skipped) == 1  # the public functions, which take Triton on CUDA tensors only
