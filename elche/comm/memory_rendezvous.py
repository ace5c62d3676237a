"""Processes that come, hang and die, as threads: what elasticity is tested on without an MPI."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from elche.comm.base import require_members, require_short
from elche.comm.meeting import Meeting
from elche.comm.memory import MemoryComm, run_threads
from elche.errors import CommError, ConfigError, DeadlineError

Result = TypeVar("Result")


class Killed(BaseException):
    """Ends a process that is gone, in the thread of its rendezvous; no `except Exception` catches it.

    Other threads of the process get a `CommError`, which daemons that talk end on anyway.
    """


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """How a process ended: with a result, or with an error."""

    result: Result | None = None
    error: BaseException | None = None


def run_elastic(
    n: int, fn: Callable[..., Result], *args: Any, timeout_seconds: float = 60.0
) -> list[Outcome[Result]]:
    """Call `fn(rendezvous, *args)` in `n` processes, each a thread; who returns or raises is gone.

    Args:
        n: the number of processes, at least 1.
        fn: what each process does.
        *args: given to each process after its rendezvous.
        timeout_seconds: how long all processes together may take.

    Returns:
        How process 0, 1, ... ended; nothing is raised for those that died.

    Raises:
        ConfigError: `n` is below 1.
        DeadlineError: a process has not returned in time; it is killed, its thread left behind.

    Example:
        >>> run_elastic(2, lambda rendezvous: 1 // rendezvous.process)[1].result
        1
    """
    machine = Machine(n)
    outcomes: dict[int, Outcome[Result]] = {}

    def live(process: int) -> None:
        try:
            result = fn(MemoryRendezvous(machine, process), *args)
            with machine.turn(process):  # who is stopped does not end, who was killed has no result
                outcomes[process] = Outcome(result=result)
        except BaseException as error:  # told in its outcome
            outcomes[process] = Outcome(error=error)
        machine.kill(process, "has ended")

    run_threads(n, live, timeout_seconds)
    if late := sorted(set(range(n)) - outcomes.keys()):
        errors = [outcome.error for outcome in list(outcomes.values()) if outcome.error is not None]
        for process in late:
            machine.kill(process, "has not ended in time")
        raise DeadlineError(
            f"run_elastic() did not end within {timeout_seconds:g} s; "
            f"processes {late} of {n} have not returned"
        ) from next(iter(errors), None)
    return [outcomes[process] for process in range(n)]


class Machine:
    """What the processes of a job share, each in its `turn`, and the faults that a test puts upon them."""

    def __init__(self, num_processes: int) -> None:
        if num_processes < 1:
            raise ConfigError(f"the number of processes must be at least 1, got {num_processes}")
        self.num_processes = num_processes
        self.mail: list[list[tuple[int, bytes]]] = [[] for _ in range(num_processes)]  # not received yet
        self.register: dict[str, str] = {}
        self.gone: dict[int, str] = {}  # and why
        self.threads: dict[int, threading.Thread] = {}  # each process's own
        self._changed = threading.Condition()
        self._stopped: set[int] = set()
        self._meetings: dict[tuple[str, tuple[int, ...]], Meeting] = {}

    def kill(self, process: int, why: str = "was killed") -> None:
        """Make `process` gone for the others; its calls, the one under way too, raise `Killed`."""
        with self._changed:
            self.gone.setdefault(process, why)
            self._changed.notify_all()
            for (_, members), meeting in self._meetings.items():
                if process in members:
                    meeting.lose(members.index(process))

    def stop(self, process: int) -> None:
        """Make all calls of `process` wait, those under way too: it is silent, not gone."""
        with self._changed:
            self._stopped.add(process)

    def resume(self, process: int) -> None:
        """Let the calls of `process` go on."""
        with self._changed:
            self._stopped.discard(process)
            self._changed.notify_all()

    @contextmanager
    def turn(self, process: int) -> Iterator[None]:
        """Wait while `process` is stopped, then keep all others out; raise if it is gone."""
        with self._changed:
            self._changed.wait_for(lambda: process in self.gone or process not in self._stopped)
            if process in self.gone:
                own = threading.current_thread() is self.threads[process]
                raise (Killed if own else CommError)(f"process {process} {self.gone[process]}")
            yield

    def meeting(self, name: str, members: tuple[int, ...]) -> Meeting:
        """Return where `members` meet under `name`; those that are gone have left it."""
        if (name, members) not in self._meetings:
            meeting = self._meetings[name, members] = Meeting(len(members))
            for process in self.gone.keys() & members:
                meeting.lose(members.index(process))
        return self._meetings[name, members]


class MemoryRendezvous:
    """`Rendezvous` of one process of a `Machine`."""

    def __init__(self, machine: Machine, process: int) -> None:
        self.machine, self.process, self.num_processes = machine, process, machine.num_processes
        machine.threads[process] = threading.current_thread()
        self._used_names: set[str] = set()

    def connect(
        self,
        processes: Sequence[int],
        name: str,
        *,
        deadline_seconds: float,
        watch: Callable[[], None] | None = None,
    ) -> MemoryComm:
        """Return a communicator of exactly these processes, in this order; all of them call it."""
        members = tuple(processes)
        require_members(self.process, members, self.num_processes)
        with self.machine.turn(self.process):
            if name in self._used_names:
                raise ConfigError(f"a name connects once, process {self.process} has used {name!r}")
            self._used_names.add(name)
            comm = ProcessComm(self.machine, self.process, name, members)
        comm.enter(deadline_seconds, watch)
        return comm

    def send(self, process: int, message: bytes) -> None:
        """Send a small message; it arrives in order, or not at all where that process is gone."""
        with self.machine.turn(self.process):
            if process not in self.machine.gone:
                self.machine.mail[process].append((self.process, message))

    def receive(self) -> list[tuple[int, bytes]]:
        """Return the messages that have come since the last call, each with its sender."""
        with self.machine.turn(self.process):
            heard, self.machine.mail[self.process] = self.machine.mail[self.process], []
            return heard

    def gone(self) -> frozenset[int]:
        """Return the processes that are known to have ended."""
        with self.machine.turn(self.process):
            return frozenset(self.machine.gone)

    def propose(self, name: str, value: str) -> str:
        """Write `value` under `name` unless somebody has; return what stands there."""
        require_short(name, value)
        with self.machine.turn(self.process):
            return self.machine.register.setdefault(name, value)

    def look_up(self, name: str) -> str | None:
        """Return what stands under `name`, None for nothing."""
        with self.machine.turn(self.process):
            return self.machine.register.get(name)


class ProcessComm(MemoryComm):
    """`Comm` of a process that may be stopped or killed, in any of its calls."""

    def __init__(self, machine: Machine, process: int, name: str, members: tuple[int, ...]) -> None:
        super().__init__(machine.meeting(name, members), members.index(process))
        self._machine, self._process, self._name, self._members = machine, process, name, members

    def enter(self, deadline_seconds: float, watch: Callable[[], None] | None) -> None:
        """Wait until all members have come; raise `CommError` when one has left meanwhile."""
        self.watch = watch
        left = self._meet("connect", None, lambda _: self._meeting.left(), deadline_seconds)
        if left:
            raise CommError(f"connect failed on rank {self.rank} of {self.size}: ranks {left} have left")
        self.watch = None

    def beside(self, ranks: Sequence[int], name: str, *, deadline_seconds: float) -> ProcessComm:
        """Return another communicator of these ranks, in this order; they all call it, a name once."""
        members = tuple(self._members[rank] for rank in require_members(self.rank, ranks, self.size))
        with self._machine.turn(self._process):
            comm = ProcessComm(self._machine, self._process, f"{self._name}/{name}", members)
        comm.watch, comm.deadline_seconds = self.watch, deadline_seconds
        return comm

    def revoke(self) -> None:
        """Make every verb under way and to come fail with `CommError`, on all ranks; may be repeated."""
        with self._machine.turn(self._process):
            super().revoke()

    def close(self) -> None:
        """Refuse further verbs; ranks that wait for this one fail at once."""
        with self._machine.turn(self._process):
            super().close()

    def abort(self, code: int) -> None:
        """Kill every process of the machine, this one too."""
        with self._machine.turn(self._process):
            why = f"was killed: process {self._process} aborted with exit code {code}"
            for process in range(self._machine.num_processes):
                self._machine.kill(process, why)
        self._pass()

    def _meet(
        self, call: str, value: Any, combine: Callable[[list[Any]], Any], deadline_seconds: float | None
    ) -> Any:
        self._pass()
        try:
            return super()._meet(call, value, combine, deadline_seconds)
        finally:
            self._pass()

    def _while_waiting(self) -> Callable[[], None]:
        def pass_and_watch() -> None:
            self._pass()
            if self.watch is not None:
                self.watch()

        return pass_and_watch

    def _pass(self) -> None:
        """Wait while this process is stopped; raise if it is gone."""
        with self._machine.turn(self._process):
            pass
