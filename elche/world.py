"""The world this process trains in: who else is there, how to reach them, on which device.

`init()` makes it, `shutdown()` ends it. A process has one world; threads that were given a communicator
of their own (`init(comm)`, the `memory` backend) have one each.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import sys
import time
import warnings
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

import torch

from elche import events
from elche.comm import memory
from elche.comm.base import DEADLINE_SECONDS, Comm, all_gather_bytes, tell_leaving
from elche.config import Environment, read_environment
from elche.errors import CommError, ConfigError, NotInitializedError, RankError
from elche.observe.jsonl import EventLog


class Engine(Protocol):
    """What trains, as far as the world has to know it."""

    def in_epoch(self) -> bool:
        """Return whether samples of an epoch are still to be trained."""
        ...

    def leave(self) -> None:
        """Tell the other ranks that this one leaves."""
        ...


@dataclass
class World:
    """One rank's view of the job.

    Attributes:
        comm: the way to the other ranks.
        device: where this rank's model should live.
        backend: "mpi" or "memory".
        log: the event log; writes nothing where none was asked for.
        devices: what every rank's device is, in rank order: its "name", and for a GPU what the policy
            judges it by.
        engine: what trains here now, or did last; None before the first optimizer is wrapped.
        pid: the process that called `init()`; a fork of it is no rank.
        started: `time.perf_counter()` at the job's common start.
    """

    comm: Comm
    device: torch.device
    backend: str
    log: EventLog
    devices: list[dict[str, Any]]
    engine: Engine | None = None
    pid: int = field(default_factory=os.getpid)
    started: float = field(default_factory=time.perf_counter)

    def stamp(self) -> dict[str, Any]:
        """Return what every event carries: seconds since the job's common start, and this rank."""
        return {"time_seconds": time.perf_counter() - self.started, "rank": self.comm.rank}

    def gpus(self) -> list[dict[str, int]] | None:
        """Return what the policy judges GPUs by, in rank order; None where some rank has none."""
        if not all("sm_major" in device for device in self.devices):
            return None
        return [{key: value for key, value in device.items() if key != "name"} for device in self.devices]


_process_world: World | None = None
_thread_world: ContextVar[World | None] = ContextVar("elche_world", default=None)


def init(comm: Comm | None = None) -> None:
    """Find the other ranks and this rank's device; where that is done already, do nothing.

    Under an MPI launcher the world is MPI's, otherwise this process is a world of one rank.

    Args:
        comm: a communicator of this thread alone, as `elche.comm.memory.run` gives; None: the process's.

    Raises:
        ConfigError: an ELCHE_* variable is unknown or refused, or names a backend that is not there; or
            `comm` is no communicator.
    """
    global _process_world  # noqa: PLW0603 - the one world of a process is what init() is for
    if comm is not None:
        if not hasattr(comm, "all_gather"):
            raise ConfigError(f"comm must be a communicator as elche.comm.memory.run gives, got {comm!r}")
        if _thread_world.get() is None:
            _thread_world.set(_make_world(comm, "memory", read_environment()))
        return
    if is_initialized():
        return
    environment = read_environment()
    backend = _backend(environment)
    _process_world = _make_world(_connect(backend), backend, environment)
    if backend == "mpi":
        _end_job_on_uncaught_exception(_process_world.comm)
        _warn_of_cores(_process_world.comm)
    atexit.register(shutdown)


def shutdown(reason: str | None = None, exit_code: int = 0) -> None:
    """Part from the other ranks and close this thread's or process's world; may be repeated.

    Ranks that still train hear that this one left, and raise `RankError`; where all leave, nobody does.

    Args:
        reason: why the job stops, for the log; None: "finished", or "left" in the middle of an epoch.
        exit_code: what the process will end with, for the log.
    """
    global _process_world  # noqa: PLW0603
    world = _thread_world.get() or _process_world
    if world is None:
        return
    if world is _process_world:
        _process_world = None
    else:
        _thread_world.set(None)
    if world.pid != os.getpid():
        return
    if reason is None:
        reason = "left" if world.engine is not None and world.engine.in_epoch() else "finished"
    if exit_code == 0:
        _part(world)
    world.log.write(events.Stop(**world.stamp(), reason=reason, exit_code=exit_code))
    world.log.close()
    world.comm.close()


def _part(world: World) -> None:
    """Let no rank wait for this one: where training has begun its engine says farewell, else we do."""
    if world.comm.size == 1:
        return
    with suppress(CommError):  # the others are gone already, or busy for longer than they may be
        if world.engine is None:
            tell_leaving(world.comm)
        else:
            world.engine.leave()


def is_initialized() -> bool:
    """Return whether `init()` was called and `shutdown()` was not."""
    return (_thread_world.get() or _process_world) is not None


def current() -> World:
    """Return this thread's world, else the process's.

    Returns:
        The world.

    Raises:
        NotInitializedError: there is none.
    """
    world = _thread_world.get() or _process_world
    if world is None:
        raise NotInitializedError("elche.init() comes first: there is no world yet, or it was shut down")
    return world


def rank() -> int:
    """Return this process's number, 0..size()-1."""
    return current().comm.rank


def size() -> int:
    """Return how many ranks there are."""
    return current().comm.size


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


def _backend(environment: Environment) -> str:
    if environment.under_torchrun:
        raise ConfigError(
            "started by torchrun, each process would train alone: start with mpirun -np N python SCRIPT"
        )
    if environment.backend == "auto":
        return "mpi" if environment.under_mpi else "memory"
    if environment.backend == "memory" and environment.under_mpi:
        raise ConfigError(
            "ELCHE_BACKEND=memory under an MPI launcher would train one model per process, each alone; "
            "start with plain python, or leave ELCHE_BACKEND to 'auto'"
        )
    return environment.backend


def _connect(backend: str) -> Comm:
    if backend == "memory":
        return memory.single()
    from elche.comm import mpi

    return mpi.world()


def _make_world(comm: Comm, backend: str, environment: Environment) -> World:
    comm.deadline_seconds = environment.stall_seconds or DEADLINE_SECONDS
    log = EventLog(environment.log, comm.rank)
    device = _device(comm.local_rank)
    mine = json.dumps(_describe(device, comm.rank)).encode()
    devices = [json.loads(text) for text in all_gather_bytes(comm, mine)]
    comm.agree(True)  # the common start of all ranks' clocks
    return World(comm, device, backend, log, devices)


def _describe(device: torch.device, rank: int) -> dict[str, Any]:
    if device.type == "cpu":
        return {"name": f"cpu {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "index": rank,
        "sm_major": properties.major,
        "sm_minor": properties.minor,
        "vram_bytes": properties.total_memory,
    }


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    found = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(found)
    return found


def _end_job_on_uncaught_exception(comm: Comm) -> None:
    """Leave no rank waiting for one that has failed: MPI_Finalize would wait for the others for ever."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.__excepthook__(kind, error, trace)
        shutdown("error", 1)
        # A fork is no rank, and a RankError is raised on every rank: each ends by itself.
        if os.getpid() == pid and not isinstance(error, RankError):
            comm.abort(1)

    pid = os.getpid()
    if comm.size > 1:
        sys.excepthook = hook


def _warn_of_cores(comm: Comm) -> None:
    """Tell of ranks with too few cores, or too many threads for them; peers lost 3x to either."""
    if comm.rank != 0:
        return
    cores, mine, threads = os.cpu_count() or 1, len(os.sched_getaffinity(0)), torch.get_num_threads()
    if mine < max(1, cores // comm.local_size):
        advice = f"{comm.local_size} ranks share {cores} cores, rank 0 may use {mine}: mpirun --bind-to none"
    elif threads > 1 and threads * comm.local_size > cores:
        advice = (
            f"{comm.local_size} ranks of {threads} threads share {cores} cores: set OMP_NUM_THREADS=1, or so"
        )
    else:
        return
    warnings.warn(advice, RuntimeWarning, stacklevel=3)
