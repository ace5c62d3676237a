"""Where the ranks of the `memory` backend meet, each a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from elche.comm.base import LIKELY_CAUSE
from elche.errors import CommError, DeadlineError

WATCH_SECONDS = 1e-3


class Meeting:
    """Where the ranks meet, once per verb: the last to come combines what all have brought.

    The others wait meanwhile, so nothing they brought needs a copy; and no rank can be two verbs
    ahead, so one result is enough.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.cause: BaseException | None = None
        self._failure: str | None = None
        self._changed = threading.Condition()
        self._calls: dict[int, str] = {}
        self._values: dict[int, Any] = {}
        self._left: set[int] = set()
        self._num_met = 0
        self._result: Any = None
        self._beside: dict[tuple[str, tuple[int, ...]], Meeting] = {}

    def meet(
        self,
        rank: int,
        call: str,
        value: Any,
        combine: Callable[[list[Any]], Any],
        limit_seconds: float,
        watch: Callable[[], None] | None,
    ) -> Any:
        """Return `combine` of all ranks' values in rank order, the same object on every rank."""
        verb = call.split()[0]
        until = time.monotonic() + limit_seconds
        with self._changed:
            if self._failure is not None:
                raise CommError(f"rank {rank} of {self.size} cannot {verb}: {self._failure}") from self.cause
            met = self._num_met
            self._calls[rank], self._values[rank] = call, value
            if len(self._values) == self.size:
                self._conclude(combine)
            self._notice_left()
        while not self._has_ended(met, until, watch):
            if time.monotonic() >= until:
                raise DeadlineError(
                    f"{verb} did not end within {limit_seconds:g} s; rank {rank} of {self.size} waited: "
                    f"{LIKELY_CAUSE}"
                )
            if watch is not None:
                watch()  # without the lock: it may take its time, or use this communicator
        if self._num_met == met:
            raise CommError(f"{verb} failed on rank {rank} of {self.size}: {self._failure}") from self.cause
        return self._result

    def fail(self, failure: str, cause: BaseException | None = None) -> None:
        """Make all waits and all further meetings fail; the first failure is the one that counts."""
        with self._changed:
            if self._failure is None:
                self._failure, self.cause = failure, self.cause or cause
            self._changed.notify_all()
            for meeting in self._beside.values():
                meeting.fail(failure, cause)

    def leave(self, rank: int, cause: BaseException | None = None) -> None:
        """Note that `rank` meets nobody any more; what it has brought to the meeting under way counts."""
        with self._changed:
            if self._failure is None:  # else it is what followed from it
                self.cause = self.cause or cause
            self._left.add(rank)
            self._notice_left()
            for (_, members), meeting in self._beside.items():
                if rank in members:
                    meeting.leave(members.index(rank), cause)

    def lose(self, rank: int) -> None:
        """Note that `rank` is gone; nothing it has brought counts, so whoever waits fails at once."""
        with self._changed:
            self._values.pop(rank, None)
            self.leave(rank)

    def beside(self, name: str, members: Sequence[int]) -> Meeting:
        """Return where `members` of this meeting meet under `name`; those that have left it are no part."""
        with self._changed:
            meeting = self._beside.setdefault((name, tuple(members)), Meeting(len(members)))
            gone = self._left.intersection(members)
        for rank in gone:
            meeting.leave(members.index(rank), self.cause)
        return meeting

    def left(self) -> list[int]:
        """Return the ranks that have left."""
        with self._changed:
            return sorted(self._left)

    def late(self) -> list[int]:
        """Return the ranks that have not left: those that nobody waits for only if there are no others."""
        with self._changed:
            here = set(range(self.size)) - self._left
            return sorted(here - self._values.keys() or here)

    def _has_ended(self, met: int, until: float, watch: Callable[[], None] | None) -> bool:
        """Return whether the meeting after the first `met` has ended; wait for it until `watch` is due."""
        turn_seconds = threading.TIMEOUT_MAX if watch is None else WATCH_SECONDS
        with self._changed:
            return self._changed.wait_for(
                lambda: self._num_met > met or self._failure is not None,
                min(max(0.0, until - time.monotonic()), turn_seconds),
            )

    def _conclude(self, combine: Callable[[list[Any]], Any]) -> None:
        if len(set(self._calls.values())) > 1:
            self.fail(f"the ranks called different things: {dict(sorted(self._calls.items()))}")
            return
        self._result = combine([self._values[rank] for rank in range(self.size)])
        self._num_met += 1
        self._values.clear()
        self._changed.notify_all()

    def _notice_left(self) -> None:
        missed = self._left - self._values.keys()
        if missed and self._values:
            self.fail(f"ranks {sorted(missed)} have left")
