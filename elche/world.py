"""The world this process trains in: who else is there, how to reach them, on which device.

A process has one world; threads that were given a communicator of their own (`init(comm)`, the `memory`
backend) have one each. `elche/start.py` makes and ends it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch

from elche.comm.base import Comm
from elche.comm.group import Group
from elche.config import Environment
from elche.errors import NotInitializedError
from elche.mpi_launch.messages import GuardLine
from elche.observe.jsonl import EventLog
from elche.process import Ending

Result = TypeVar("Result")


class Engine(Protocol):
    """What trains, as far as the world has to know it."""

    def in_epoch(self) -> bool:
        """Return whether samples of an epoch are still to be trained."""
        ...

    def leave(self) -> bool:
        """Tell the other ranks that this one leaves; return whether all leave together."""
        ...


class Reducers(Protocol):
    """What sums gradients over the ranks, as far as the world has to know it."""

    def close(self) -> None:
        """Give back what it has, before this process ends."""
        ...


class Operations(Protocol):
    """Collective operations that proceed beside the training, as far as the world has to know them."""

    def close(self) -> None:
        """Let what is outstanding fail, and tell the other ranks that this one leaves."""
        ...


@dataclass
class World:
    """One rank's view of the job.

    Attributes:
        comm: the way to the other ranks; a world of its own while this process is outside the group.
        device: where this rank's model should live.
        backend: "mpi" or "memory".
        log: the event log; writes nothing where none was asked for.
        devices: what every rank's device is, in rank order: its "name", and for a GPU what the policy
            judges it by.
        environment: what the shell asked for.
        group: who the others are, where the job can go on without some of them; else None.
        ending: how this process ends; None where it is not elche's to say.
        guard: the line to this process's guard, which says nothing where there is none.
        engine: what trains here now, or did last; None before the first optimizer is wrapped.
        reducers: what sums gradients; None before the first optimizer is wrapped.
        operations: collective operations beside the training; None before the first.
        pid: the process that called `init()`; a fork of it is no rank.
        started: `time.perf_counter()` at the job's common start.
    """

    comm: Comm
    device: torch.device
    backend: str
    log: EventLog
    devices: list[dict[str, Any]]
    environment: Environment
    group: Group | None = None
    ending: Ending | None = None
    guard: GuardLine = field(default_factory=lambda: GuardLine(None))
    engine: Engine | None = None
    reducers: Reducers | None = None
    operations: Operations | None = None
    pid: int = field(default_factory=os.getpid)
    started: float = field(default_factory=time.perf_counter)
    _beat_at: float = 0.0

    def stamp(self) -> dict[str, Any]:
        """Return what every event carries: seconds since the job's common start, rank and generation."""
        generation = 0 if self.group is None else self.group.view.generation
        return {
            "time_seconds": time.perf_counter() - self.started,
            "rank": self.rank,
            "generation": generation,
        }

    @property
    def inside(self) -> bool:
        """Whether this process is one of the ranks, not a spare or one that was set aside."""
        return self.group is None or self.group.inside

    def is_passed_over(self) -> bool:
        """Return whether the others have gone on without this process, which may have been stopped."""
        return self.group is not None and self.group.inside and self.group.is_passed_over()

    @property
    def rank(self) -> int:
        """This rank's number; outside the group one that no member has: it must not pass for rank 0."""
        if self.group is None:
            return self.comm.rank
        rank = self.group.view.rank_of(self.group.process)
        return max(self.group.process, self.size) if rank is None else rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.comm.size if self.group is None else len(self.group.view.members)

    @property
    def first_size(self) -> int:
        """How many ranks there were at first."""
        return self.comm.size if self.group is None else self.group.num_first

    @property
    def slots(self) -> list[int]:
        """The slot of each rank."""
        if self.group is None:
            return list(range(self.comm.size))
        return [member.slot for member in self.group.view.members]

    @property
    def slot(self) -> int:
        """The slot of this rank; -1: none."""
        return self.comm.rank if self.group is None else self.group.slot

    def start_up(self, step: Callable[[Comm], Result]) -> Result:
        """Do a step that all ranks do before training; a rank lost meanwhile does not stop the others.

        Args:
            step: what to do with a communicator; may be done again with another one.

        Returns:
            What `step` returned.
        """
        if self.group is None or not self.inside:
            return step(self.comm)
        result: Result = self.group.start_up(step)
        self.log.take_over(self.rank)  # whoever was to write it may be lost
        return result

    def set_elapsed(self, seconds: float) -> None:
        """Let the job have begun so long ago."""
        self.started = time.perf_counter() - seconds

    def guard_beat(self, in_batch: bool) -> None:
        """Show this rank's own guard, at most once a second, that its loop goes on."""
        if self.guard.is_open and time.monotonic() - self._beat_at > 1.0:
            self._beat_at = time.monotonic()
            self.guard.tell({"beat": True, "in_batch": in_batch})

    def gpus(self) -> list[dict[str, int]] | None:
        """Return what the policy judges GPUs by, in rank order; None where some rank has none."""
        if not all("sm_major" in device for device in self.devices):
            return None
        return [{key: value for key, value in device.items() if key != "name"} for device in self.devices]


_process_worlds: list[World] = []  # one at most
_thread_world: ContextVar[World | None] = ContextVar("elche_world", default=None)


def install(world: World, *, thread: bool) -> None:
    """Let `world` be this thread's, or this process's."""
    if thread:
        _thread_world.set(world)
    else:
        _process_worlds.append(world)


def take_down() -> World | None:
    """Let this thread, else this process, have no world any more; return the one it had."""
    world = _thread_world.get()
    if world is not None:
        _thread_world.set(None)
        return world
    return _process_worlds.pop() if _process_worlds else None


def here(*, thread: bool = False) -> World | None:
    """Return this thread's own world; unless `thread` says that no other will do, else the process's."""
    return _thread_world.get() or (None if thread else next(iter(_process_worlds), None))


def is_initialized() -> bool:
    """Return whether `init()` was called and `shutdown()` was not."""
    return here() is not None


def current() -> World:
    """Return this thread's world, else the process's.

    Returns:
        The world.

    Raises:
        NotInitializedError: there is none.
    """
    world = here()
    if world is None:
        raise NotInitializedError("elche.init() comes first: there is no world yet, or it was shut down")
    return world


def rank() -> int:
    """Return this process's number, 0..size()-1; a spare, or a rank that was set aside, has a higher one."""
    world = current()
    return world.size if world.is_passed_over() else world.rank


def size() -> int:
    """Return how many ranks there are."""
    return current().size


def local_rank() -> int:
    """Return this process's number among those of its host."""
    return current().comm.local_rank


def local_size() -> int:
    """Return how many ranks this host has."""
    return current().comm.local_size


def cross_rank() -> int:
    """Return this host's number among the hosts that have this local rank."""
    return current().comm.cross_rank


def cross_size() -> int:
    """Return how many hosts have a rank of this local number."""
    return current().comm.cross_size


def device() -> torch.device:
    """Return the device of this rank: its host's GPUs in turn, else the CPU."""
    return current().device
