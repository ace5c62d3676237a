"""Say which GPU there is, with the versions that matter; or why there is none, and end with 1."""

from __future__ import annotations

import sys

import harness
import torch
import triton

if not torch.cuda.is_available():
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    print(f"torch {torch.__version__} is built for {built} and finds no device")
    sys.exit(1)
properties = torch.cuda.get_device_properties(0)
print(
    f"* device: {properties.name}, sm_{properties.major}{properties.minor}, "
    f"{properties.total_memory / 2**30:.0f} GiB, {torch.cuda.device_count()} of them\n"
    f"* versions: torch {torch.__version__}, CUDA {torch.version.cuda}, triton {triton.__version__}\n"
    f"* commit: {harness.conditions()['commit']}"
)
