"""Facts of a machine on which all is well, and the same with a difference."""

from __future__ import annotations

from typing import Any

GIB = 2**30
OLD_GPU = {"index": 0, "name": "Old", "sm_major": 6, "sm_minor": 1, "vram_bytes": 6 * GIB, "error": None}
NEW_GPU = {"index": 1, "name": "New", "sm_major": 9, "sm_minor": 0, "vram_bytes": 80 * GIB, "error": None}
TORCH = {"path": "/site/torch/__init__.py", "version": "2.9.1", "cuda": None, "threads": 8, "gpus": []}
GPU_TORCH = TORCH | {"cuda": "12.8", "gpus": [OLD_GPU, NEW_GPU]}
CUPY = {"reason": None, "version": "13.6.0", "cuda": 12080, "nccl": 22703}
LIVE = {
    "asked": 4,
    "loses_one": True,
    "wall_seconds": 5.5,
    "told": [],
    "num_ranks": 4,
    "num_ranks_left": 3,
    "device": "cpu",
    "ranks": [{"pid": 7, "cpus": 2, "threads": 2}] * 4,
    "small_ms": 0.021,
    "large_ms": 4.0,
    "large_bytes": 4 * 2**20,
    "sum": 4.0,
    "num_updates": 60,
    "next_update_ms": 31.2,
    "seconds": 1.9,
}
WELL: dict[str, Any] = {
    "elche": {
        "version": "0.1.0",
        "python": "3.12.1",
        "executable": "/venv/bin/python",
        "needs": {"torch": "2.7", "numpy": "1.26", "mpi4py": "4.0", "triton": "3.3"},
    },
    "shell": {
        "error": None,
        "launcher": None,
        "omp_num_threads": None,
        "visible_gpus": None,
        "python_path": None,
        "folder": "/home/user",
    },
    "mpi": {
        "mpirun": "/venv/bin/mpirun",
        "family": "Open MPI",
        "version": "6.0.0",
        "kind": "ULFM",
        "is_cuda_aware": False,
    },
    "mpi4py": {
        "path": "/site/mpi4py/__init__.py",
        "version": "4.1.0",
        "library": "Open MPI v6.0.0, package: x",
        "libmpi": "/opt/mpi/lib/libmpi.so.40",
        "family": "Open MPI",
        "library_version": "6.0.0",
        "mpirun": "/opt/mpi/bin/mpirun",
    },
    "numpy": {"path": "/site/numpy/__init__.py", "version": "2.1.0"},
    "triton": {"path": "/site/triton/__init__.py", "version": "3.5.1"},
    "torch": TORCH,
    "cupy": {"reason": "PyTorch was not built for CUDA"},
    "driver": {"gpus": None},
    "host": {"name": "node1", "address": "10.0.0.7"},
    "processors": {"cpus": 8, "allowed": 8, "cores": 8, "quota": None},
    "root": {"is_root": False, "is_allowed": False},
    "shared_memory": {
        "path": "/dev/shm",
        "total_bytes": 16 * GIB,
        "free_bytes": 15 * GIB,
        "is_writable": True,
    },
    "temporary": {"path": "/tmp", "total_bytes": 100 * GIB, "free_bytes": 50 * GIB, "is_writable": True},
    "interfaces": [
        {"name": "lo", "address": "127.0.0.1", "is_up": True},
        {"name": "eth0", "address": "10.0.0.7", "is_up": True},
        {"name": "ib0", "address": None, "is_up": False},
    ],
    "loopback": True,
    "stale": {"mpi": [], "elche": []},
    "live": LIVE,
}
ON_GPUS = {"torch": GPU_TORCH, "cupy": CUPY, "driver": {"gpus": [OLD_GPU, NEW_GPU]}}


def well_but(**topics: Any) -> dict[str, Any]:
    """A well machine's facts, with some topics' keys changed; what is no dict takes the topic's place."""
    changed = {
        name: {**WELL[name], **topic} if isinstance(topic, dict) else topic for name, topic in topics.items()
    }
    return {**WELL, **changed}
