"""What Horovod's scripts ask of the installation and the launch."""

from __future__ import annotations

import importlib.util
from collections import Counter

import torch

from elche import world as worlds
from elche.comm.mpi_start import has_threads


def is_homogeneous() -> bool:
    """Return whether all hosts have the same number of ranks."""
    return len({*Counter(worlds.current().comm.hosts).values()}) == 1


def mpi_threads_supported() -> bool:
    """Return whether several threads may call MPI; False where this job uses none."""
    return mpi_enabled() and has_threads()


def mpi_enabled() -> bool:
    """Return whether this job's ranks talk over MPI."""
    return worlds.current().backend == "mpi"


def mpi_built() -> bool:
    """Return whether MPI can be used: whether there is mpi4py."""
    return importlib.util.find_spec("mpi4py") is not None


def nccl_built() -> int:
    """Return 10000 * major + 100 * minor + patch of NCCL's version; 0 where it sums no gradients."""
    if importlib.util.find_spec("cupy") is None or not torch.cuda.is_available():
        return 0
    major, minor, patch = torch.cuda.nccl.version()[:3]  # type: ignore[no-untyped-call]
    return 10000 * int(major) + 100 * int(minor) + int(patch)


def cuda_built() -> bool:
    """Return whether this PyTorch knows CUDA."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Return whether this PyTorch knows ROCm."""
    return torch.version.hip is not None


def gloo_built() -> bool:
    """Return False: elche has no gloo."""
    return False


def gloo_enabled() -> bool:
    """Return False: elche has no gloo."""
    return False


def ddl_built() -> bool:
    """Return False: elche has no DDL."""
    return False


def ccl_built() -> bool:
    """Return False: elche has no oneCCL."""
    return False
