"""Training that outlives its ranks: the state that travels to newcomers and into checkpoints.

Importing this imports nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elche.elastic.state import TorchState

__all__ = ["TorchState"]

_HOME = {"TorchState": "elche.elastic.state"}


def __dir__() -> list[str]:
    """List the public names, those that are not imported yet among them."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'elche.elastic' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
