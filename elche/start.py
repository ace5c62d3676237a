"""`elche.init()` and `elche.shutdown()`: from a bare process to its world, and away from it."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
import warnings
from contextlib import suppress
from typing import Any, cast

import torch

from elche import events
from elche.comm import memory
from elche.comm.base import DEADLINE_SECONDS, Comm, Rendezvous, all_gather_bytes, tell_leaving
from elche.comm.group import Group
from elche.config import Environment, read_environment
from elche.errors import CommError, ConfigError
from elche.mpi_launch.messages import GuardLine
from elche.observe.jsonl import EventLog
from elche.process import STOPS, Ending
from elche.world import World, here, install, take_down

FAILURES = ("error", "stalled")  # reasons of a rank that can say no farewell
BY_SRUN = (
    "srun --mpi=pmix for Open MPI, srun --mpi=pmi2 for MPICH and Intel MPI (srun --mpi=list tells what there "
    "is), or elche-run SCRIPT without srun"
)


def init(comm: Comm | Rendezvous | None = None) -> None:
    """Find the other ranks and this rank's device; where that is done already, do nothing.

    Under an MPI launcher the world is MPI's, otherwise this process is a world of one rank.

    Args:
        comm: a communicator of this thread alone, as `elche.comm.memory.run` gives; None: the process's.

    Raises:
        ConfigError: an ELCHE_* variable is unknown or refused, or names a backend that is not there; or
            `comm` is no communicator.
    """
    environment = read_environment()
    if comm is not None:
        if here(thread=True) is None:
            install(_thread_world_of(comm, environment), thread=True)
        return
    if here() is not None:
        return
    backend = _backend(environment)
    world = _connect(backend, environment)
    install(world, thread=False)
    world.ending = Ending(world.comm, world.group, guarded=environment.guard is not None)
    world.ending.take_over(shutdown)
    world.guard = GuardLine(environment.guard)
    if backend == "mpi":
        _warn_of_cores(world.comm)
        _tell_of_losses(world)


def shutdown(reason: str | None = None, exit_code: int = 0) -> None:
    """Part from the other ranks and close this thread's or process's world; may be repeated.

    Ranks that still train hear that this one left, and raise `RankError` where they cannot go on without it;
    where all leave, nobody minds.

    Args:
        reason: why the job stops, for the log; None: "finished", or "left" in the middle of an epoch.
        exit_code: what the process will end with, for the log.
    """
    world = take_down()
    if world is None or world.pid != os.getpid():
        return
    if reason is None:
        reason = _reason(world, exit_code)
    if world.operations is not None:
        world.operations.close()
    together = reason not in FAILURES and _part(world)
    if together or world.group is None or world.group.is_last():
        world.log.write(events.Stop(**world.stamp(), reason=reason, exit_code=exit_code))
    world.guard.tell({"event": "stop", "reason": reason, "exit_code": exit_code})
    world.log.close()
    if world.reducers is not None:
        world.reducers.close()
    if world.group is not None:
        if together:
            world.group.end(reason)
        world.group.close()
    world.comm.close()


def _reason(world: World, exit_code: int) -> str:
    if world.engine is None or not world.engine.in_epoch():
        return "finished"
    failed = exit_code not in (0, *STOPS.values())  # sys.exit(5) is no leave-taking
    return "error" if failed and world.group is not None else "left"


def _part(world: World) -> bool:
    """Let no rank wait for this one: the engine says farewell, or we do; return whether all part together."""
    with suppress(CommError):  # the others are gone already, or busy for longer than they may be
        if world.engine is not None:
            return world.engine.leave()
        if world.comm.size > 1:
            tell_leaving(world.comm)
    return False


def _backend(environment: Environment) -> str:
    if environment.under_torchrun:
        raise ConfigError(
            "started by torchrun, each process would train alone: start with mpirun -np N python SCRIPT"
        )
    if environment.under_srun and environment.backend == "auto":
        raise ConfigError(
            f"srun has started {environment.num_started} tasks and told them of no MPI, so each would train "
            f"alone: start with {BY_SRUN}; where each shall train alone, set ELCHE_BACKEND=memory"
        )
    if environment.backend == "auto":
        return "mpi" if environment.under_mpi else "memory"
    if environment.backend == "memory" and environment.under_mpi:
        raise ConfigError(
            "ELCHE_BACKEND=memory under an MPI launcher would train one model per process, each alone; "
            "start with plain python, or leave ELCHE_BACKEND to 'auto'"
        )
    return environment.backend


def _connect(backend: str, environment: Environment) -> World:
    if backend == "memory":
        return _make_world(memory.single(), backend, environment)
    if environment.fault_tolerant:
        from elche.comm import mpi_rendezvous

        rendezvous = mpi_rendezvous.rendezvous()
        _require_all(rendezvous.num_processes, environment)
        return _elastic_world(rendezvous, backend, environment)
    from elche.comm import mpi

    comm = mpi.world()
    _require_all(comm.size, environment)
    return _make_world(comm, backend, environment)


def _require_all(num_known: int, environment: Environment) -> None:
    """Refuse a world of one where the launcher has started more: it does not belong to this MPI."""
    started = environment.num_started or 1
    if num_known == 1 and started > 1:
        raise ConfigError(
            f"{started} processes were started, but MPI knows of 1, so each would train alone: start with "
            f"the mpirun of the MPI that mpi4py uses, as elche-run does; in Slurm with {BY_SRUN}"
        )


def _thread_world_of(comm: Comm | Rendezvous, environment: Environment) -> World:
    if hasattr(comm, "all_gather"):
        return _make_world(cast(Comm, comm), "memory", environment)
    if hasattr(comm, "look_up"):
        return _elastic_world(comm, "memory", environment)
    raise ConfigError(f"comm must be a communicator as elche.comm.memory.run gives, got {comm!r}")


def _make_world(comm: Comm, backend: str, environment: Environment) -> World:
    """Return the world of ranks that live and end together."""
    comm.deadline_seconds = environment.stall_seconds or DEADLINE_SECONDS
    return _described(
        World(comm, _device(comm.local_rank), backend, EventLog(environment.log), [], environment)
    )


def _elastic_world(rendezvous: Rendezvous, backend: str, environment: Environment) -> World:
    """Return the world of ranks that may be lost and replaced; the last processes are outside at first."""
    num_members = rendezvous.num_processes - environment.spares - environment.seats
    if num_members < 1:
        raise ConfigError(
            f"ELCHE_SPARES={environment.spares} and ELCHE_RESPAWN={environment.seats} leave no rank of "
            f"{rendezvous.num_processes} processes; at least 1 must train from the start"
        )
    group = Group(
        rendezvous, num_members, num_seats=environment.seats, stall_seconds=environment.stall_seconds
    )
    comm: Comm = memory.single()
    if group.inside:
        comm = group.start_up(lambda comm: comm)
    log = EventLog(environment.log)
    world = World(comm, _device(comm.local_rank), backend, log, [], environment, group)
    group.on_connect = lambda comm: setattr(world, "comm", comm)
    return _described(world)


def _described(world: World) -> World:
    """Learn every rank's device, and start all ranks' clocks together."""
    mine = json.dumps(_describe(world.device, world.rank)).encode()

    def learn(comm: Comm) -> None:
        world.devices = [json.loads(text) for text in all_gather_bytes(comm, mine)]

    world.start_up(learn)
    world.start_up(lambda comm: comm.agree(True))
    world.started = time.perf_counter()
    world.log.take_over(world.rank)
    return world


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


def _tell_of_losses(world: World) -> None:
    if world.group is None and world.comm.rank == 0 and world.comm.size > 1:
        sys.stderr.write(
            "elche: a lost rank ends this job; under mpirun --with-ft ulfm, or elche-run, it goes on\n"
        )


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
