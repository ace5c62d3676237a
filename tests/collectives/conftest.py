"""Lets the tests, and the script that they start under mpirun, import the laws alike."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
