"""Elastic data-parallel training of PyTorch models on machines of unequal speed.

Importing this imports nothing heavy: torch and MPI are loaded when the first name that needs them is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from elche import elastic, errors
from elche.config import Cadence

if TYPE_CHECKING:
    from elche.start import init, shutdown
    from elche.training.loader import DataLoader
    from elche.training.optimizer import DistributedOptimizer
    from elche.training.wire import Compression
    from elche.world import (
        cross_rank,
        cross_size,
        device,
        is_initialized,
        local_rank,
        local_size,
        rank,
        size,
    )

__version__ = "0.1.0"

__all__ = [
    "Cadence",
    "Compression",
    "DataLoader",
    "DistributedOptimizer",
    "cross_rank",
    "cross_size",
    "device",
    "elastic",
    "errors",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]

_HOME = {
    "Compression": "elche.training.wire",
    "DataLoader": "elche.training.loader",
    "DistributedOptimizer": "elche.training.optimizer",
    "init": "elche.start",
    "shutdown": "elche.start",
}


def __dir__() -> list[str]:
    """List the public names, those that are not imported yet among them."""
    return sorted({*__all__, "__version__"})


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'elche' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME.get(name, "elche.world")), name)
    globals()[name] = value
    return value
