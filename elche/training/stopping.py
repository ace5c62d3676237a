"""Who would like to stop, and why: this rank's wish in each exchange, and what all make of them."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable

from elche.environment import most_failures
from elche.policy import wishes
from elche.training.exchange import Row
from elche.training.job import Job
from elche.world import World

HELP_SECONDS = 60.0  # how long a job may go on below min_ranks while somebody may come


class Stopping:
    """When this rank, or the job, ends before the last epoch does.

    Attributes:
        stopping: whether all ranks have agreed to stop: there are no more batches.
        exit_code: with which the stopped job ends.
        on_stop: writes the checkpoint of a job that is stopped; None: nobody has asked for one.
    """

    stopping: bool
    exit_code: int
    on_stop: Callable[[], None] | None

    def __init__(self, world: World, job: Job) -> None:
        """Go on, for now.

        Args:
            world: the ranks, and what signals this process has had.
            job: what all ranks know alike.
        """
        self._world, self._job = world, job
        self.stopping, self.exit_code, self.on_stop = False, 0, None
        self._requested: tuple[str, int] | None = None
        self._announced = False
        self._alone_since: float | None = None
        self._wanted = 0
        self._most_failures = most_failures(world.environment.max_failures, job.first_ranks)

    def request(self, reason: str, exit_code: int) -> None:
        """Ask all ranks to stop after the same window."""
        self._requested = self._requested or (reason, exit_code)

    def with_wish(self, row: Row) -> Row:
        """Return this rank's row with what it wishes for."""
        self._hear_guard()
        wish = self._wish()
        self._announced = wish == wishes.ANNOUNCE or self._announced
        return row._replace(wish=wish, wanted=self._wanted)

    def agree(self, rows: list[Row]) -> None:
        """Learn from everybody's wishes whether all stop after this window."""
        self._job.wanted = max(self._job.wanted, *(row.wanted for row in rows))
        code = wishes.agreed_stop([row.wish for row in rows], 143)
        if code is not None:
            self.stopping, self.exit_code = True, code

    def write(self) -> None:
        """Write the checkpoint on the rank that writes; the others wait for it, and hear if it failed."""
        written = True
        try:
            if self.on_stop is not None:
                self.on_stop()
        except OSError as error:
            sys.stderr.write(f"elche: no checkpoint was written: {error}\n")
            written = False
        if not self._world.comm.agree(written):
            self.exit_code = self.exit_code or 1

    def finish(self) -> None:
        """End the script, unless it asked for the stop and ends by itself."""
        if self._requested is not None and self._world.rank == 0:
            sys.stderr.write(
                f"elche: all ranks stop after {self._job.window} windows: {self._requested[0]}\n"
            )
        if self.exit_code:
            sys.exit(self.exit_code)

    def leave(self) -> None:
        """End this rank's script: it was asked to go, and the others know."""
        ending = self._world.ending
        sys.exit(143 if ending is None or ending.asked != signal.SIGINT else 130)

    @property
    def is_leaving(self) -> bool:
        """Whether this rank has told the others that it goes."""
        return self._announced

    def _wish(self) -> int:
        ending = self._world.ending
        if self._requested is None:
            self._find_reason()
        if self._requested is not None:
            return wishes.stop_with(self._requested[1])
        if ending is not None and ending.asked is not None:
            return wishes.GO if self._announced else wishes.ANNOUNCE
        return wishes.STAY

    def _find_reason(self) -> None:
        environment, job, ending = self._world.environment, self._job, self._world.ending
        most = self._most_failures
        if self._world.size >= environment.min_ranks:
            self._alone_since = None
        if ending is not None and ending.asked == signal.SIGINT:
            self.request("interrupted", 130)
        elif most is not None and job.num_losses > most:
            self.request(f"{job.num_losses} ranks were lost, {most} may be", 1)
        elif self._world.size < environment.min_ranks and not self._may_be_helped():
            self.request(f"{self._world.size} ranks are left, at least {environment.min_ranks} shall be", 4)

    def _may_be_helped(self) -> bool:
        """Whether somebody outside may still fill the job up to what it needs."""
        group = self._world.group
        now = time.monotonic()
        self._alone_since = self._alone_since or now
        return group is not None and bool(group.outsiders()) and now - self._alone_since < HELP_SECONDS

    def _hear_guard(self) -> None:
        for message in self._world.guard.hear():
            if message.get("stop"):
                self.request("the launcher was asked to stop", int(message.get("exit_code", 143)))
            if "ranks" in message:
                self._wanted = int(message["ranks"])
