"""Lets these tests `import fake_engine`, and keeps the shell's own directory of checkpoints out of them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest


@pytest.fixture(autouse=True)
def no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ELCHE_CHECKPOINT", raising=False)
