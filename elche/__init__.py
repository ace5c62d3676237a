"""Elastic data-parallel training of PyTorch models on machines of unequal speed.

Importing this imports nothing heavy: torch and MPI are loaded when the first name that needs them is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from elche import elastic, errors
from elche.config import Cadence

if TYPE_CHECKING:
    from elche.collectives.asynchronous import (
        allgather_async,
        allreduce_async,
        allreduce_async_,
        alltoall_async,
        broadcast_async,
        broadcast_async_,
        grouped_allgather_async,
        grouped_allreduce_async,
        grouped_allreduce_async_,
        grouped_reducescatter_async,
        poll,
        reducescatter_async,
        sparse_allreduce_async,
        synchronize,
    )
    from elche.collectives.basics import (
        ccl_built,
        cuda_built,
        ddl_built,
        gloo_built,
        gloo_enabled,
        is_homogeneous,
        mpi_built,
        mpi_enabled,
        mpi_threads_supported,
        nccl_built,
        rocm_built,
    )
    from elche.collectives.functions import (
        allgather_object,
        broadcast_object,
        broadcast_optimizer_state,
        broadcast_parameters,
    )
    from elche.collectives.operations import (
        allgather,
        allreduce,
        allreduce_,
        alltoall,
        barrier,
        broadcast,
        broadcast_,
        grouped_allgather,
        grouped_allreduce,
        grouped_allreduce_,
        grouped_reducescatter,
        join,
        reducescatter,
    )
    from elche.collectives.ops import (
        Adasum,
        Average,
        Max,
        Min,
        Product,
        ReduceOp,
        Sum,
    )
    from elche.collectives.process_sets import (
        ProcessSet,
        add_process_set,
        global_process_set,
        remove_process_set,
    )
    from elche.errors import HorovodInternalError
    from elche.start import init, shutdown
    from elche.training.loader import DataLoader
    from elche.training.optimizer import DistributedOptimizer
    from elche.training.wire import Compression
    from elche.world import (
        cross_rank,
        cross_size,
        device,
        is_initialized,
        local_rank,
        local_size,
        rank,
        size,
    )

__version__ = "0.1.0"

__all__ = [
    "Adasum",
    "Average",
    "Cadence",
    "Compression",
    "DataLoader",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "device",
    "elastic",
    "errors",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "synchronize",
]

_HOMES = {
    "elche.errors": ["HorovodInternalError"],
    "elche.start": ["init", "shutdown"],
    "elche.training.loader": ["DataLoader"],
    "elche.training.optimizer": ["DistributedOptimizer"],
    "elche.training.wire": ["Compression"],
    "elche.collectives.asynchronous": [
        "allgather_async",
        "allreduce_async",
        "allreduce_async_",
        "alltoall_async",
        "broadcast_async",
        "broadcast_async_",
        "grouped_allgather_async",
        "grouped_allreduce_async",
        "grouped_allreduce_async_",
        "grouped_reducescatter_async",
        "poll",
        "reducescatter_async",
        "sparse_allreduce_async",
        "synchronize",
    ],
    "elche.collectives.basics": [
        "ccl_built",
        "cuda_built",
        "ddl_built",
        "gloo_built",
        "gloo_enabled",
        "is_homogeneous",
        "mpi_built",
        "mpi_enabled",
        "mpi_threads_supported",
        "nccl_built",
        "rocm_built",
    ],
    "elche.collectives.functions": [
        "allgather_object",
        "broadcast_object",
        "broadcast_optimizer_state",
        "broadcast_parameters",
    ],
    "elche.collectives.operations": [
        "allgather",
        "allreduce",
        "allreduce_",
        "alltoall",
        "barrier",
        "broadcast",
        "broadcast_",
        "grouped_allgather",
        "grouped_allreduce",
        "grouped_allreduce_",
        "grouped_reducescatter",
        "join",
        "reducescatter",
    ],
    "elche.collectives.ops": ["Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Sum"],
    "elche.collectives.process_sets": [
        "ProcessSet",
        "add_process_set",
        "global_process_set",
        "remove_process_set",
    ],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __dir__() -> list[str]:
    """List the public names, those that are not imported yet among them."""
    return sorted({*__all__, "__version__"})


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'elche' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME.get(name, "elche.world")), name)
    globals()[name] = value
    return value
