"""The Triton kernels without a GPU: their tests again, in a process that sets TRITON_INTERPRET first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
STEMS = ("triton", "cast_scale", "sum_shards", "drift_norms", "outer_step", "lerp")


def test_every_kernel_case_passes_in_the_interpreter():
    files = [str(HERE / f"test_{stem}.py") for stem in STEMS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *files, "-p", "no:cacheprovider", "-m", "not soak"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=HERE,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed, skipped = re.search(r"(\d+) passed, (\d+) skipped", done.stdout).groups()
    assert int(passed) >= 500
    assert int(skipped) == 1  # the public functions, which take Triton on CUDA tensors only
