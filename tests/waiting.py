"""Waiting for what must come to pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def until(holds: Callable[[], Any], seconds: float = 40.0) -> Any:
    """Wait for something true, and return it."""
    end = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < end, f"waited {seconds} s in vain"
        time.sleep(0.01)
    return value


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
