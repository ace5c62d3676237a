"""What this rank is at, for those who wait for it: written down at each batch, told by the pulse."""

from __future__ import annotations

from collections import deque

from elche.training.job import Job
from elche.training.plan import Plan
from elche.world import World

RECENT_BATCHES = 8


class Presence:
    """Follows this rank's batches; where a lost rank ends the job it does nothing."""

    def __init__(self, world: World, job: Job) -> None:
        self._world, self._group, self._job = world, world.group, job
        self._recent: deque[float] = deque(maxlen=RECENT_BATCHES)
        self._began = 0.0

    def at_batch(self, plan: Plan | None, *, first: bool) -> None:
        """Note that the next batch is fetched and computed from now on; without a plan, that none is.

        Args:
            plan: the window under way.
            first: whether it is this rank's first of the epoch, for which workers may have to start.
        """
        if self._group is None:
            return
        self._began = self._group.pulse.clock.now()
        if plan is None:
            self._group.signs.at_rest()
        else:
            self._group.signs.at_batch(plan.index, self._longest(), first=first)
        self._world.guard_beat(plan is not None)

    def after_batch(self) -> None:
        """Note that the batch is done, and how long it took."""
        if self._group is not None:
            self._recent.append(self._group.pulse.clock.now() - self._began)
            self._group.pulse.num_batches += 1

    def after_step(self) -> None:
        """Note that the script goes on: with the loop's body, an evaluation, whatever may be long."""
        if self._group is not None:
            self._group.signs.at_rest()

    def at_meeting(self, window: int) -> None:
        """Note that this rank waits for the others."""
        if self._group is not None:
            self._group.signs.at_meeting(window, self._longest())

    def _longest(self) -> float | None:
        """Return how long a batch lately took at most; None before the first commit here."""
        return max(self._recent) if self._recent and self._job.window > 0 else None
