"""Jobs of threads that are killed, stopped, raise or go at chosen points."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import elche
from elche import start
from elche.comm.memory_rendezvous import Killed, MemoryRendezvous, Outcome, run_elastic
from elche.observe.jsonl import EventLog
from elche.world import World, current

STALL_SECONDS = 0.3
STOP_SECONDS = {"blink": 0.1, "stop": 0.6}  # shorter than the silence deadline, and longer
VERBS = ("all_gather", "all_reduce", "agree", "broadcast")
POINTS = (
    "batch",
    "data",
    "epoch",
    *(f"{when} {verb}" for verb in VERBS for when in ("before", "after")),
    *("before decide", "after decide", "before settle", "after settle", "before connect", "after connect"),
    *("before send", "after send", "before receive", "after receive"),
    *("before begin_epoch", "after begin_epoch", "before leave", "after leave", "before knock"),
)
BUSY = ("rank . .slot .. has made no progress", "ELCHE_STALL_SECONDS=")  # where the machine has much to do
OWN_POINTS = ("batch", "data", "epoch")  # in the script, which may raise or return there


@dataclass(frozen=True)
class Fault:
    """Strikes `process` once, when `by` (None: itself) first comes to `point` at `window` or later.

    Window -1 is before there is an optimizer. Kinds: kill, stop, blink (a short stop), raise, return.
    """

    process: int
    window: int
    point: str
    kind: str
    by: int | None = None


class ScriptError(Exception):
    """What a script raises."""


class Returned(Exception):  # noqa: N818 - no error: the script returns early
    """Ends the training loop of a script that returns early."""


@dataclass
class Trial:
    """What became of a job: by process its outcome, the log's events, the faults that struck."""

    outcomes: list[Outcome[Any]]
    events: list[dict[str, Any]]
    fired: list[Fault]

    def results(self) -> list[Any]:
        """What every process returned; the first error is raised."""
        for outcome in self.outcomes:
            if outcome.error is not None:
                raise outcome.error
        return [outcome.result for outcome in self.outcomes]

    def members(self) -> list[Any]:
        """The reports of those who were members to the end."""
        return [outcome.result for outcome in self.outcomes if getattr(outcome.result, "member", False)]

    def told(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] in kinds]

    def errors(self) -> list[type | None]:
        return [None if outcome.error is None else type(outcome.error) for outcome in self.outcomes]


class Process:
    """One process of a job: says where it is, and is struck there.

    Attributes:
        number: of this process.
        machine: all of them.
        world: its world.
        optimizer: the one it trains with; None before there is one.
    """

    def __init__(self, rendezvous: MemoryRendezvous, faults: Sequence[Fault], fired: list[Fault]) -> None:
        self.rendezvous, self.number, self.machine = rendezvous, rendezvous.process, rendezvous.machine
        self._faults, self._fired = faults, fired
        self.optimizer: Any = None
        self.world: World | None = None
        connect = rendezvous.connect

        def connect_and_watch(*args: Any, **options: Any) -> Any:
            comm = connect(*args, **options)
            for verb in VERBS:
                setattr(comm, verb, self._around(verb, getattr(comm, verb)))
            return comm

        rendezvous.connect = self._around("connect", connect_and_watch)  # type: ignore[method-assign]
        elche.init(rendezvous)
        self.world = current()
        self._watch(self.world.group, "decide", "settle", "knock")
        log = self.world.log
        for name in ("take_over", "confirm", "write"):
            setattr(log, name, self._in_turn(getattr(log, name)))

    @property
    def engine(self) -> Any:
        return self.optimizer._engine

    @property
    def window(self) -> int:
        return -1 if self.optimizer is None else self.engine.job.window

    def watch(self, optimizer: Any) -> None:
        """Let faults strike in what this optimizer does, too."""
        self.optimizer = optimizer
        self._watch(self.engine, "begin_epoch", "leave")
        self._watch(self.engine.survival._transfer, "send", "receive")

    def at(self, point: str) -> None:
        """Say where this process is."""
        for fault in self._faults:
            watcher = fault.process if fault.by is None else fault.by
            due = watcher == self.number and fault.point == point and fault.window <= self.window
            if due and fault not in self._fired and fault.process not in self.machine.gone:
                self._fired.append(fault)
                self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        if fault.kind == "raise":
            raise ScriptError(f"process {self.number} raises in window {self.window}")
        if fault.kind == "return":
            raise Returned
        if fault.kind == "kill":
            self.machine.kill(fault.process)
        else:
            self.say_what_i_do()
            self.stop(fault.process, STOP_SECONDS[fault.kind])
        self.rendezvous.gone()  # waits, or ends, where it was this process that was struck

    def say_what_i_do(self) -> None:
        """Send a heartbeat now: a stop strikes in the midst of what this process is at."""
        if self.world is None:
            return
        self.world.group.pulse.tell_all(self.world.group.pulse._beat())

    def rest_until(self, condition: Callable[[], Any]) -> None:
        """Wait for a condition between two batches, where that is no silence."""
        self.world.group.signs.at_rest()
        until(condition)

    def has_fired(self, fault: Fault) -> bool:
        """Whether this fault has struck."""
        return fault in self._fired

    def hears(self, *processes: int) -> bool:
        """Whether these knock."""
        knocks = self.world.group.pulse.knocks(self.engine.job.epoch)
        return set(processes) <= {knock.process for knock in knocks}

    def stop(self, process: int, seconds: float) -> None:
        """Stop a process for so long."""
        self.machine.stop(process)
        waker = threading.Timer(seconds, self.machine.resume, [process])
        waker.daemon = True
        waker.start()

    def _watch(self, owner: Any, *names: str) -> None:
        for name in names:
            setattr(owner, name, self._around(name, getattr(owner, name)))

    def _in_turn(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Let nothing strike in `call`; a thread that was killed would go on until its next message."""

        def in_turn(*args: Any, **options: Any) -> Any:
            with self.machine.turn(self.number):
                return call(*args, **options)

        return in_turn

    def _around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def around(*args: Any, **options: Any) -> Any:
            self.at(f"before {name}")
            result = call(*args, **options)
            self.at(f"after {name}")
            return result

        return around


def run(
    n: int,
    script: Callable[[Process], Any],
    *,
    faults: Sequence[Fault] = (),
    seconds: float = 20.0,
    stall: float = STALL_SECONDS,
    **settings: object,
) -> Trial:
    """Run `script` in `n` processes to their ends.

    Args:
        n: how many there are.
        script: what each does after `elche.init()`.
        faults: what strikes them.
        seconds: how long all may take; it is a failure to take longer.
        stall: ELCHE_STALL_SECONDS.
        **settings: more of them, `spares=1` is ELCHE_SPARES.

    Returns:
        What became of them.
    """
    fired: list[Fault] = []
    logs: list[EventLog] = []

    def make_log(path: str | None) -> EventLog:
        logs.append(EventLog(path))
        return logs[-1]

    def live(rendezvous: MemoryRendezvous) -> Any:
        process = Process(rendezvous, faults, fired)
        try:
            result = script(process)
            elche.shutdown()
        except Killed:
            raise
        except SystemExit as end:
            elche.shutdown(None, int(end.code or 0))
            raise
        except BaseException:
            elche.shutdown("error", 1)
            raise
        return result

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        for text in BUSY:
            warnings.filterwarnings("ignore", text, RuntimeWarning)
        log = Path(folder) / "log.jsonl"
        given = {f"ELCHE_{name.upper()}": str(value) for name, value in settings.items()}
        given |= {"ELCHE_LOG": str(log), "ELCHE_STALL_SECONDS": str(stall)}
        with patch.dict(os.environ, given), patch.object(start, "EventLog", make_log):
            outcomes = run_elastic(n, live, timeout_seconds=seconds)
        for each in logs:
            each.close()  # as the system does for the dead
        lines = log.read_text().splitlines() if log.exists() else []
    return Trial(outcomes, [json.loads(line) for line in lines], fired)


def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    """Wait for a condition; it is a failure if it does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(1e-3)
