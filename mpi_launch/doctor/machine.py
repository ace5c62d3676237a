"""What this machine has, as the system tells it without any library: cores, memory, network, leftovers."""

from __future__ import annotations

import os
import shutil
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from typing import Any

from elche.mpi_launch.command import AS_ROOT, count_cores

SHARED_MEMORY = Path("/dev/shm")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
PROCESSES = Path("/proc")
GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
CONNECT_SECONDS = 2.0
MPI_FOLDERS = ("ompi.", "prted.")  # then a process number: what Open MPI 5 keeps its files in
ELCHE_FOLDERS = ("elche-",)

Found = dict[str, Any]


def processors() -> Found:
    """Return how many "cpus" there are, the "cores" and "allowed" CPUs of this process, and its "quota"."""
    allowed = os.sched_getaffinity(0)
    return {
        "cpus": os.cpu_count() or 1,
        "allowed": len(allowed),
        "cores": count_cores(allowed),
        "quota": read_quota(CONTROL_GROUPS),
    }


def read_quota(groups: Path) -> float | None:
    """Return how many CPUs' time this container may use.

    Args:
        groups: where control groups are mounted, of the first version or the second.

    Returns:
        Such as 2.5; None: no limit is set, or none can be read.
    """
    with suppress(OSError, ValueError):
        quota, period = (groups / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota, period = ((groups / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    return None


def storage(folder: Path) -> Found:
    """Return a folder's "path", and where there is one "total_bytes", "free_bytes" and "is_writable"."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return {"path": str(folder)}
    writable = os.access(folder, os.W_OK)
    return {
        "path": str(folder),
        "total_bytes": usage.total,
        "free_bytes": usage.free,
        "is_writable": writable,
    }


def interfaces() -> list[Found]:
    """Return "name", IPv4 "address" (None: it has none) and whether it "is_up" of each network interface."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            address = None
            with suppress(OSError):
                told = ioctl(any_socket, GET_ADDRESS, struct.pack("256s", name.encode()))
                address = socket.inet_ntoa(told[20:24])
            state = Path("/sys/class/net") / name / "operstate"
            is_up = state.read_text().strip() in ("up", "unknown") if state.exists() else address is not None
            found.append({"name": name, "address": address, "is_up": is_up})
    return found


def loopback_answers() -> bool:
    """Return whether this machine can call itself, as guards call the launcher."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def stale_mpi(folder: Path) -> list[str]:
    """Return what MPI has left of processes that are gone.

    Args:
        folder: where it keeps its files.

    Returns:
        Paths, all of this user's.
    """
    return [
        str(path)
        for path in _own(folder, MPI_FOLDERS)
        if (number := path.name.partition(".")[2]).isdigit() and not (PROCESSES / number).exists()
    ]


def stale_elche(folder: Path = SHARED_MEMORY) -> list[str]:
    """Return what a killed `elche-run` has left in memory: no process names it in its environment.

    Args:
        folder: where it keeps its files.

    Returns:
        Paths, all of this user's.
    """
    found = [path for path in _own(folder, ELCHE_FOLDERS) if path.is_dir()]
    used = b"\0".join(_environments()) if found else b""
    return [str(path) for path in found if os.fsencode(path) not in used]


def as_root(shell: Mapping[str, str]) -> Found:
    """Return whether this "is_root", and whether Open MPI's own mpirun "is_allowed" to start ranks then."""
    return {"is_root": os.geteuid() == 0, "is_allowed": AS_ROOT.items() <= shell.items()}


def _own(folder: Path, prefixes: tuple[str, ...]) -> Iterator[Path]:
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            with suppress(OSError):
                if path.name.startswith(prefixes) and path.lstat().st_uid == os.geteuid():
                    yield path


def _environments() -> Iterator[bytes]:
    for folder in PROCESSES.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                yield (folder / "environ").read_bytes()
