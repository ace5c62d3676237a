"""The Triton kernels without a GPU: their tests again, in a process that sets TRITON_INTERPRET first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
STEMS = ("triton", "agreement", "alignment", "cast_scale", "sum_shards", "drift_norms", "outer_step", "lerp")


@pytest.mark.parametrize(
    ("selection", "fewest"), [("not soak", 600), pytest.param("soak", 10, marks=pytest.mark.soak)]
)
def test_every_kernel_case_passes_in_the_interpreter(selection, fewest):
    files = [str(HERE / f"test_{stem}.py") for stem in STEMS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *files, "-p", "no:cacheprovider", "-m", selection],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=HERE,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= fewest
    assert "skipped" not in done.stdout
