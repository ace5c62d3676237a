"""Lets these tests, like the scripts that mpirun starts beside them, `import training_rig`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
