"""What this process has open of shared memory."""

from __future__ import annotations

import gc
from pathlib import Path


def open_segments() -> int:
    """Return how many files of shared memory are open, offers and mappings, after garbage is collected."""
    gc.collect()
    names = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            names.append(str(path.readlink()))
        except FileNotFoundError:  # the one that listed them
            continue
    return sum("memfd:elche" in name for name in names)
