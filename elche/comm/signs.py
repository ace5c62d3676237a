"""Who is silent: what this process says of itself, and how long the others may say nothing new."""

from __future__ import annotations

import warnings

from elche.comm.base import DEADLINE_SECONDS
from elche.comm.pulse import ENTERING_SECONDS, Pulse
from elche.policy.membership import FLOOR_SECONDS, View, silence_limit

# In a first batch or an evaluation, which may be long, a process beats, and one that is stopped does not; nor
# does one whose foreign code holds Python's lock, but not for so long.
QUIET_SECONDS = 60.0
SOON_SECONDS = 1.0  # no warning of what will be over before it is read


class Signs:
    """Sets what the pulse tells, with the silence deadline that goes with it, and judges the others'."""

    def __init__(self, pulse: Pulse, process: int, stall_seconds: float | None) -> None:
        """Begin at rest.

        Args:
            pulse: tells and hears.
            process: this one.
            stall_seconds: the silence deadline; None: it follows the measured batches.
        """
        self._pulse, self._process, self._stall_seconds = pulse, process, stall_seconds
        self._quiet_limit = QUIET_SECONDS if stall_seconds is None else max(FLOOR_SECONDS, stall_seconds)
        self._warned: set[tuple[int, str]] = set()
        self.at_rest("starting")

    def at_batch(self, window: int, recent_seconds: float | None, *, first: bool) -> None:
        """Note that a batch is being loaded or computed.

        Args:
            window: whose it is.
            recent_seconds: how long the longest of the last ones took; None: not known.
            first: whether it is the epoch's first here, for which workers may have to start.
        """
        limit = self._limit(recent_seconds)
        self._pulse.at(f"in a batch of window {window}", max(limit, QUIET_SECONDS) if first else limit)

    def at_rest(self, doing: str = "outside of its batches") -> None:
        """Note that the script does something of its own, which may be long: it is no silence."""
        self._pulse.at(doing, DEADLINE_SECONDS)

    def at_meeting(self, window: int, recent_seconds: float | None) -> None:
        """Note that it waits for the others."""
        self._pulse.at(f"at the end of window {window}", self._limit(recent_seconds), waits=True)

    def at_roll_call(self) -> None:
        """Note that it waits for a new view."""
        self._pulse.at("at a roll call", self._limit(0.0), waits=True)

    def at_door(self) -> None:
        """Note that it waits to be let in."""
        self._pulse.at("knocking", ENTERING_SECONDS, waits=True)

    def silent(self, view: View) -> set[int]:
        """Return the other members that have made no progress for longer than their limit; warns before."""
        silent = set()
        for process in set(view.processes) - {self._process}:
            told = self._pulse.last_beat(process)
            if told is None:
                continue
            beat, quiet = told
            quiet_limit = self._quiet_limit if beat.batches else QUIET_SECONDS  # it imports, or compiles
            for seconds, limit in ((beat.age + quiet, beat.limit), (quiet, quiet_limit)):
                if seconds > limit:
                    silent.add(process)
                elif seconds > max(limit / 2, SOON_SECONDS):
                    self._warn(view, process, seconds, limit, beat.doing)
        return silent

    def _limit(self, recent_seconds: float | None) -> float:
        """Return the silence deadline for batches that lately took so long; None: not known."""
        given = self._stall_seconds
        if recent_seconds is None:
            return DEADLINE_SECONDS
        if given is not None and given < 2 * recent_seconds:
            self._warn_of_limit(given, recent_seconds)
            given = 2 * recent_seconds
        return silence_limit(recent_seconds, stall_seconds=given, long_seconds=DEADLINE_SECONDS)

    def _warn(self, view: View, process: int, seconds: float, limit: float, doing: str) -> None:
        if (process, doing) in self._warned or view.rank_of(self._process) not in (0, 1):
            return
        self._warned.add((process, doing))
        warnings.warn(
            f"rank {view.rank_of(process)} (slot {view.slot_of(process)}) has made no progress for "
            f"{seconds:.1f} s, {doing}; it is set aside after {limit:.1f} s",
            RuntimeWarning,
            stacklevel=2,
        )

    def _warn_of_limit(self, given: float, recent_seconds: float) -> None:
        if (self._process, "limit") not in self._warned:
            self._warned.add((self._process, "limit"))
            warnings.warn(
                f"ELCHE_STALL_SECONDS={given:g} is less than two of this rank's batches, which take "
                f"{recent_seconds:.2g} s; twice that is its limit",
                RuntimeWarning,
                stacklevel=2,
            )
