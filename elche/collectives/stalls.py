"""Who waits for whom, for too long: told once an operation, long before it is an error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping

from elche.comm.base import Comm

WARNING_SECONDS = 60.0
LOOK_SECONDS = 1.0


class StallWatch:
    """Watches the operations of one rank in a process set.

    Attributes:
        absent: the ranks that had not come to the round under way when it was looked last.
        begun: when that round began.
    """

    absent: list[int]
    begun: float

    def __init__(self, who: str, deadline_seconds: float) -> None:
        """Begin.

        Args:
            who: waits, for texts.
            deadline_seconds: when it is an error.
        """
        self._who, self._deadline = who, deadline_seconds
        self._warn_after = min(WARNING_SECONDS, deadline_seconds / 2)
        self._told: set[str] = set()
        self.begin_round()

    def begin_round(self) -> None:
        """Note that this rank goes to a round."""
        self.begun, self.absent = time.monotonic(), []
        self._look_at = self.begun + self._pause()

    def look(self, comm: Comm, names: Mapping[str, float]) -> None:
        """While a verb waits: look who has not come, and tell.

        Args:
            comm: whose verb it is.
            names: what this rank has outstanding, and since when.
        """
        now = time.monotonic()
        if now >= self._look_at:
            self.absent, self._look_at = comm.absent(), now + self._pause()
            if self.absent and now - self.begun > self._warn_after:
                self._tell(names, lambda _: self.absent)

    def after_round(self, names: Mapping[str, float], missing: Callable[[str], list[int]]) -> None:
        """Tell of operations that wait for long, though all come to the rounds.

        Args:
            names: what this rank has outstanding, and since when.
            missing: tells, by name, the ranks that have not submitted it.
        """
        late = time.monotonic() - self._warn_after
        self._tell([name for name, since in names.items() if since < late], missing)

    def forget(self, names: Iterable[str]) -> None:
        """Note that these have ended: what is called so from now on is another operation."""
        self._told.difference_update(names)

    def _pause(self) -> float:
        return min(LOOK_SECONDS, self._warn_after / 4)

    def _tell(self, names: Iterable[str], missing: Callable[[str], list[int]]) -> None:
        untold = [name for name in names if name not in self._told]
        self._told.update(untold)
        if untold:
            ranks = sorted({rank for name in untold for rank in missing(name)})
            shown = ", ".join(untold[:5]) + (f" and {len(untold) - 5} more" if len(untold) > 5 else "")
            sys.stderr.write(
                f"elche: {self._who} waits for ranks {ranks} in {shown}, for more than "
                f"{self._warn_after:g} s; after {self._deadline:g} s that is an error\n"
            )
