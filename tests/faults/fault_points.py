"""The points of a training at which a fault comes to pass.

start        before a start-up step; its number is how many came before
load         while a sample is read, in the second half of an epoch
batch        between backward and step(); how many batches of the window are done
middle       the same, in the second half of an epoch
last         the same, in the last window of an epoch
exchange, all_reduce, agree, send, receive
             in that collective; how many messages it has begun to send (send, receive: a newcomer's state)
add          where this rank adds up its part of the sum in shared memory; 0: before it does, 1: all have
added        where it waits until all have; how many messages it has begun to send
commit       when all have agreed, before this rank commits; committed: right after it
roll call    when this rank is to answer; proposing: when it knows the next view, before it writes it
epoch        between two epochs
write        when a checkpoint is written, and not renamed yet
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fault_kinds import KINDS, Victim

from elche.comm.group import Group
from elche.comm.mpi_call import Call
from elche.comm.mpi_direct import MpiDirectComm
from elche.comm.mpi_rendezvous import TAG
from elche.comm.mpi_wire import Wire
from elche.policy.dispatch import Range
from elche.training.job import Job
from elche.training.reduction import Reduction
from elche.training.shared_reducer import SharedReducer
from elche.training.transfer import Transfer
from elche.training.window import WindowEngine

SLOWER, SLOW_WINDOWS = 10, 8


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`kind` comes to pass on `process`, when it is `at` with this number in this window or a later one."""

    process: int
    kind: str
    window: int = 0
    at: str = "batch"
    number: int = 0


class Faults:
    """The faults of this process; each comes to pass once, and is noted in `fired.jsonl` before it does.

    Attributes:
        job: the training's; None before there is one.
    """

    job: Job | None

    def __init__(self, process: int, faults: list[Fault], folder: Path) -> None:
        self._left = [fault for fault in faults if fault.process == process]
        self._victim, self._fired = Victim(process, folder / "log.jsonl"), folder / "fired.jsonl"
        self._within: list[str] = []
        self._num_sent = self._num_steps = 0
        self._is_adding = False
        self._slow_until = -1
        self.job = None

    def here(self, at: str, number: int = 0) -> str | None:
        """Let come to pass what is to; returns its kind where this process goes on."""
        for fault in self._left:
            if (fault.at, fault.number) == (at, number) and self.window >= fault.window:
                self._left.remove(fault)
                with self._fired.open("a") as file:
                    fired = {**asdict(fault), "window": self.window, "share": self.share}
                    file.write(json.dumps(fired) + "\n")
                if fault.kind == "slow":
                    self._slow_until = self.window + SLOW_WINDOWS
                KINDS[fault.kind](self._victim)
                return fault.kind
        return None

    def in_batch(self, number: int) -> bool:
        """Be between backward and step() of a batch; returns whether to leave the loop."""
        if self._is_second_half:
            self.here("middle", number)
        if self.job is not None and self.job.pool is not None and self.job.pool.remaining == 0:
            self.here("last", number)
        return self.here("batch", number) == "leave_loop"

    def load(self) -> None:
        """Be where a sample is read."""
        if self._is_second_half:
            self.here("load")

    @property
    def window(self) -> int:
        """Number of the window under way."""
        return 0 if self.job is None else self.job.window

    @property
    def share(self) -> tuple[Range, ...]:
        """This process's batches of it."""
        return () if self.job is None or self.job.plan is None else self.job.plan.share

    @property
    def slowness(self) -> int:
        """How many times longer a batch takes now."""
        return SLOWER if self.window < self._slow_until else 1

    @property
    def _is_second_half(self) -> bool:
        """Whether the others must have heard that the epoch's first batch, which may be long, is over."""
        pool = None if self.job is None else self.job.pool
        return pool is not None and 0 < pool.remaining < pool.num_batches / 2

    # Points inside elche.

    def watch(self) -> None:
        """Hook this process's; before `elche.init()`."""
        for owner, name, at in (
            (Group, "decide", "roll call"),
            (Reduction, "meet", "exchange"),
            (MpiDirectComm, "all_reduce", "all_reduce"),
            (Transfer, "send", "send"),
            (Transfer, "receive", "receive"),
        ):
            _wrap(owner, name, lambda at=at: self._collective(at))
        _wrap(SharedReducer, "all_reduce", self._add)
        _wrap(MpiDirectComm, "agree", lambda: self._collective("added" if self._is_adding else "agree"))
        _wrap(Group, "start_up", self._step)
        _wrap(Group, "settle", lambda: self._before("proposing"))
        _wrap(WindowEngine, "_commit", self._commit)
        _wrap(os, "fsync", lambda: self._before("write"))
        _wrap(Call, "wait", self._sent)
        self._send_one_by_one()

    def _send_one_by_one(self) -> None:
        """Let there be a moment between two messages that elche sends at once."""
        plain_start, plain_send = Wire.start, Wire.send

        def start(wire: Wire, planned: list[Any]) -> None:
            receives, sends = planned[: len(planned) // 2], planned[len(planned) // 2 :]
            plain_start(wire, receives)
            for one in sends:
                self._message()
                plain_start(wire, [one])

        def send(wire: Wire, messages: Any, tag: int, requests: Any) -> None:
            for message in messages:
                if tag != TAG:
                    self._message()
                plain_send(wire, [message], tag, requests)

        Wire.start, Wire.send = start, send  # type: ignore[method-assign]

    def _message(self) -> None:
        if self._within and threading.current_thread() is threading.main_thread():
            self.here(self._within[-1], self._num_sent)
            self._num_sent += 1

    @contextmanager
    def _collective(self, at: str) -> Iterator[None]:
        self._within.append(at)
        self._num_sent = 0
        self.here(at)
        try:
            yield
        finally:
            self._within.pop()

    @contextmanager
    def _sent(self) -> Iterator[None]:
        if self._within:
            self.here(self._within[-1], self._num_sent)
        yield

    @contextmanager
    def _before(self, at: str) -> Iterator[None]:
        self.here(at)
        yield

    @contextmanager
    def _add(self) -> Iterator[None]:
        self.here("add", 0)
        self._is_adding = True
        try:
            yield
        finally:
            self._is_adding = False
        self.here("add", 1)

    @contextmanager
    def _step(self) -> Iterator[None]:
        self.here("start", self._num_steps)
        self._num_steps += 1
        yield

    @contextmanager
    def _commit(self) -> Iterator[None]:
        self.here("commit")
        yield
        self.here("committed")


def _wrap(owner: Any, name: str, around: Callable[[], AbstractContextManager[None]]) -> None:
    plain = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with around():
            return plain(*args, **kwargs)

    setattr(owner, name, wrapped)
