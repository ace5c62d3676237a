"""One run of a job: mpirun as a child, its guards on the line, and an end in any case."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from elche.errors import ConfigError
from elche.mpi_launch.command import Mpi
from elche.mpi_launch.discovery import Discovery, judge
from elche.mpi_launch.messages import Message
from elche.mpi_launch.options import Options
from elche.mpi_launch.signals import GROW_ONE, GROW_QUEUED, SignalPipe, ends_with_parent
from elche.mpi_launch.switchboard import Switchboard
from elche.mpi_launch.verdict import End, Record

LOOK_SECONDS = 0.5
DRAIN_SECONDS = 1.0  # what guards sent before mpirun ended is here long before
STEP_SECONDS = 2.0  # between the ways to end a job, each harder than the one before


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        code: the launcher's exit code.
        mpirun_code: mpirun's own, or minus the signal that ended it.
        lines: who was lost, when, why and what it cost.
        started: whether any rank was.
        died_whole: whether the job ended though some rank could have gone on.
        num_changes: losses and entries that the ranks told of.
    """

    code: int
    mpirun_code: int
    lines: list[str]
    started: bool
    died_whole: bool
    num_changes: int


class Supervisor:
    """Starts mpirun, listens, passes on what follows, and ends what does not end by itself."""

    def __init__(
        self,
        options: Options,
        mpi: Mpi,
        switchboard: Switchboard,
        signals: SignalPipe,
        say: Callable[[str], None],
        discovery: Discovery | None = None,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            options: what was asked for.
            mpi: what mpirun can do.
            switchboard: the guards' lines.
            signals: this process's.
            say: prints a line for the user.
            discovery: finds hosts while the job runs; None: they stay what they are.
        """
        self._options = options
        self._mpi = mpi
        self._switchboard = switchboard
        self._signals = signals
        self._say = say
        self._outlives_losses = mpi is Mpi.ULFM
        self._record = Record(options.num_ranks, options.num_processes, outlives_losses=self._outlives_losses)
        self._end: End | None = None
        self._force_at: float | None = None  # a stop that was asked for is forced then
        self._since: dict[str, float] = {}  # by reason to end the job: when it was first seen to hold
        self._steps: list[tuple[float, Callable[[], None]]] = []  # ways to end the job that are still left
        self._is_ending = False
        self._num_grown = 0
        self._discovery = discovery
        self._told: set[str] = set()  # what is to be told once

    def run(self, command: Sequence[str], env: Mapping[str, str]) -> Outcome:
        """Start the job and see it to its end.

        Args:
            command: mpirun's.
            env: its environment.

        Returns:
            How it ended; nothing of it is left then on this machine.
        """
        end_with_us = ends_with_parent(os.getpid(), signal.SIGTERM)
        self._mpirun = subprocess.Popen(command, env=env, preexec_fn=end_with_us)  # noqa: PLW1509 - no threads
        while self._mpirun.poll() is None:
            self._turn(LOOK_SECONDS)
            self._judge(time.monotonic())
            self._discover(time.monotonic())
        self._hear_out()
        for process in self._record.started & self._record.living:  # guards that mpirun did not outlive
            self._record.note(process, {"event": "vanished"})
        self._switchboard.tell_all({"kill": True})
        self._hear_out()
        return self._outcome(self._mpirun.returncode)

    def _hear_out(self) -> None:
        until = time.monotonic() + DRAIN_SECONDS
        while self._switchboard.num_guards and time.monotonic() < until:
            self._turn(0.05)

    def _turn(self, seconds: float) -> None:
        """Take in what is told within so many seconds, and the signals."""
        for sender, message in self._switchboard.listen(seconds):
            num_changes = self._record.num_changes
            for process, order in self._record.note(sender, message):
                self._switchboard.tell(process, order)
            if self._options.verbose:
                self._narrate(sender, message, has_changed=self._record.num_changes > num_changes)
            if message.get("event") == "started" and self._end is not None:
                self._switchboard.tell(sender, {"stop": True, "exit_code": self._end.value})
        for number in self._signals.read():
            self._take_signal(number)

    def _narrate(self, sender: int, message: Message, *, has_changed: bool) -> None:
        """Tell of those that start, enter and are lost, for --verbose."""
        event, about = message.get("event"), message.get("process", sender)
        if event == "started":
            self._say(f"process {sender} has started on {message.get('host')}, pid {message.get('pid')}")
        elif event == "joined" and has_changed:
            self._say(f"process {about} has entered in slot {message.get('slot')}")
        elif event == "lost" and has_changed:
            self._say(f"process {about} is lost: {message.get('cause')}")

    def _discover(self, now: float) -> None:
        """Grow into slots that have come, and tell of hosts that come and go."""
        if self._discovery is None or self._end is not None or self._is_ending:
            return
        try:
            found = self._discovery.poll(now)
        except ConfigError as error:
            self._tell_once(f"{error}; the hosts stay what they were")
            return
        everybody = set(range(self._options.num_processes))
        if (
            found is None or not everybody <= self._record.started
        ):  # an order reaches only those who have called
            return
        options = self._options
        change = judge(
            options.hosts,
            found,
            gone=self._discovery.gone,
            num_ranks=options.num_ranks + self._num_grown,
            max_ranks=options.max_ranks,
        )
        self._discovery.forget(change.vanished)
        for name in change.vanished:
            self._say(f"host {name} is not named any more: its ranks go on, it is not used again")
        for name in change.new:
            self._tell_once(f"host {name} is new: it is used if the job starts again")
        while options.num_ranks + self._num_grown < change.ranks:
            self._grow()

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._say(line)

    def _take_signal(self, number: int) -> None:
        if number in (GROW_ONE, GROW_QUEUED):
            self._grow()
        elif number == signal.SIGINT and self._end is not None:
            self._end_job("interrupted again")
        elif number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) and self._end is None:
            end = End[signal.Signals(number).name]
            self._stop(end, end.name)
            if not self._mpi.has_guards:
                self._mpirun.send_signal(number)

    def _stop(self, end: End, why: str) -> None:
        """Let all ranks stop, with a checkpoint where one is wanted; those that do not are killed later."""
        self._end = end
        self._say(f"{why}: all ranks stop after the same window")
        self._record.excuse()
        self._force_at = time.monotonic() + self._options.kill_seconds
        self._switchboard.tell_all({"stop": True, "exit_code": end.value})

    def _grow(self) -> None:
        ranks = self._options.num_ranks + self._num_grown + 1
        if ranks > (self._options.max_ranks or 0):
            self._say(f"cannot grow to {ranks} ranks: --max-np is {self._options.max_ranks}")
            return
        self._num_grown += 1
        self._say(f"growing to {ranks} ranks")
        self._switchboard.tell_all({"grow": 1, "ranks": ranks})

    def _judge(self, now: float) -> None:
        """End the job where nothing is left to wait for, or too much is lost; go on with an end."""
        most, failures = self._options.most_losses, self._record.num_failures
        if most is not None and failures > most and self._end is None:
            why = f"{failures} of {self._options.num_ranks} ranks lost, --max-failures allows {most}"
            self._stop(End.TOO_MANY_FAILURES, why)
        limit, changes = self._options.reset_limit, self._record.num_changes
        if limit is not None and changes > limit and self._end is None:
            why = f"losses and entries: {changes}, --reset-limit allows {limit}"
            self._stop(End.TOO_MANY_FAILURES, why)
        record, grace, kill = self._record, self._options.grace_seconds, self._options.kill_seconds
        for holds, patience, end, why in (
            (record.is_over, grace, None, f"{grace:g} s after the end"),
            (record.is_stillborn, grace, None, "a process failed before elche.init(), the others wait in it"),
            (record.is_stuck, kill, End.STALLED, f"{kill:g} s with none but stopped ranks"),
        ):
            if not holds:
                self._since.pop(why, None)
            elif now - self._since.setdefault(why, now) > patience and not self._is_ending:
                self._end = self._end or end
                self._end_job(why)
        if self._force_at is not None and now > self._force_at:
            self._end_job(f"{self._options.kill_seconds:g} s after the ranks were asked to stop")
        while self._steps and now >= self._steps[0][0]:
            self._steps.pop(0)[1]()

    def _end_job(self, why: str) -> None:
        """Kill the ranks through their guards, then end mpirun, then kill it; once."""
        if self._is_ending:
            return
        self._is_ending = True
        left = ", ".join(map(str, sorted(self._record.living))) if self._mpi.has_guards else ""
        self._say(f"{why}: killing {f'processes {left}' if left else 'mpirun'}")
        self._record.excuse()
        ways = [lambda: self._switchboard.tell_all({"kill": True}), self._mpirun.terminate, self._kill_mpirun]
        now = time.monotonic()
        for index, way in enumerate(ways if left else ways[1:]):
            self._steps.append((now + index * STEP_SECONDS, way))

    def _kill_mpirun(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._mpirun.pid, signal.SIGKILL)

    def _outcome(self, mpirun_code: int) -> Outcome:
        record = self._record
        code = record.exit_code(self._end, self._options.strict)
        knows = bool(record.started) and self._outlives_losses  # else any loss has ended the job
        if self._end is None and not (knows or self._is_ending or record.has_stopped):
            code = int(mpirun_code != 0)
        started = bool(record.started) or not self._mpi.has_guards or mpirun_code == 0
        died_whole = self._end is None and record.died_whole
        return Outcome(code, mpirun_code, record.lines(), started, died_whole, record.num_changes)
