"""Lets these tests `import survival_rig`; processes are threads here, and hear of each other fast."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent))

import pytest

from elche.comm import pulse


@pytest.fixture(autouse=True)
def quick_pulse(monkeypatch):
    """A test has no time for ten heartbeats a second."""
    monkeypatch.setattr(pulse, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(pulse, "LONGEST_STEP_SECONDS", 0.1)


@pytest.fixture(autouse=True)
def own_environment():
    """The shell's own settings stay out."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ELCHE_")}
    with patch.dict(os.environ, plain, clear=True):
        yield
