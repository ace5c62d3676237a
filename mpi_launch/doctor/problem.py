"""A problem and its remedy, and how bad it is."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Facts = Mapping[str, Any]


class Level(enum.IntEnum):
    """How bad it is.

    Attributes:
        NOTE: training under `elche-run` does not mind.
        LIMIT: it trains, but less well than it could, or not through losses.
        FATAL: it cannot train.
    """

    NOTE = 0
    LIMIT = 1
    FATAL = 2


@dataclass(frozen=True)
class Problem:
    """What is wrong.

    Attributes:
        level: how bad it is.
        about: it in two or three words.
        text: it in one sentence.
        remedy: what to do, in one line.
    """

    level: Level
    about: str
    text: str
    remedy: str

    def plain(self) -> dict[str, str]:
        """Return it as plain values."""
        return {
            "level": self.level.name.lower(),
            "about": self.about,
            "problem": self.text,
            "remedy": self.remedy,
        }
