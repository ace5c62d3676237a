"""Operations that begin here and end by `synchronize`; they proceed while Python computes.

Each takes tensors of any strides. A GPU's tensor is copied to the host when the operation begins, and its
result back when it is synchronized: sums are made on the host. Operations may begin in a different order on
every rank if they are named; those without a name are numbered in the order in which they begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from elche.collectives.arguments import factors, reduce_op, split_rows
from elche.collectives.begin import begin, root_of
from elche.collectives.handles import Handle
from elche.collectives.ops import ReduceOp
from elche.collectives.process_sets import ProcessSet, global_process_set
from elche.collectives.requests import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    REDUCESCATTER,
)


def synchronize(handle: Handle) -> Any:
    """Return the result of an operation, once it has ended.

    Args:
        handle: what began it.

    Returns:
        The tensor, the tensors of a grouped operation, or what else the operation returns.

    Raises:
        HorovodInternalError: it cannot end.
        OperationMismatchError: the ranks called it with different arguments.
    """
    return handle.wait()


def poll(handle: Handle) -> bool:
    """Return whether an operation has ended, so that `synchronize` returns at once."""
    return handle.is_done()


def all_results(handle: Handle) -> list[Tensor]:
    """Return a grouped operation's results; for `finish`."""
    return handle.results


def _reduce(
    kind: str,
    tensors: Sequence[Tensor],
    name: str | None,
    what: tuple[bool | None, ReduceOp | None],
    scales: tuple[float, float],
    process_set: ProcessSet,
    outputs: Sequence[Tensor] | None = None,
    finish: Callable[[Handle], Any] | None = None,
) -> Handle:
    op, wrong_op = reduce_op(*what)
    (prescale, postscale), wrong_factors = factors(*scales)
    return begin(
        kind,
        tensors,
        name,
        process_set,
        outputs=outputs,
        finish=finish,
        problem=wrong_op or wrong_factors,
        op=str(op),
        prescale=prescale,
        postscale=postscale,
    )


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin `allreduce`; the tensor must not change until it has ended."""
    scales = prescale_factor, postscale_factor
    return _reduce(ALLREDUCE, [tensor], name, (average, op), scales, process_set)


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin `allreduce_`."""
    scales = prescale_factor, postscale_factor
    return _reduce(ALLREDUCE, [tensor], name, (average, op), scales, process_set, outputs=[tensor])


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin `grouped_allreduce`."""
    scales = prescale_factor, postscale_factor
    return _reduce(ALLREDUCE, tensors, name, (average, op), scales, process_set, finish=all_results)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin `grouped_allreduce_`."""
    scales = prescale_factor, postscale_factor
    tensors = list(tensors)
    return _reduce(ALLREDUCE, tensors, name, (average, op), scales, process_set, tensors, all_results)


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begin `reducescatter`."""
    scales = prescale_factor, postscale_factor
    return _reduce(REDUCESCATTER, [tensor], name, (None, op), scales, process_set)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begin `grouped_reducescatter`."""
    scales = prescale_factor, postscale_factor
    return _reduce(REDUCESCATTER, tensors, name, (None, op), scales, process_set, finish=all_results)


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begin `allgather`."""
    return begin(ALLGATHER, [tensor], name, process_set)


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begin `grouped_allgather`."""
    return begin(ALLGATHER, tensors, name, process_set, finish=all_results)


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begin `broadcast`."""
    return begin(BROADCAST, [tensor], name, process_set, **root_of(root_rank, process_set))


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begin `broadcast_`."""
    return begin(BROADCAST, [tensor], name, process_set, outputs=[tensor], **root_of(root_rank, process_set))


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin `alltoall`."""
    told, problem = split_rows(tensor, splits, process_set.size())

    def with_splits(handle: Handle) -> tuple[Tensor, Tensor]:
        return handle.results[0], torch.tensor(handle.sizes, dtype=torch.int32)

    finish = None if splits is None else with_splits
    return begin(ALLTOALL, [tensor], name, process_set, finish=finish, problem=problem, splits=told)


def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: ReduceOp, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begin to sum or average a sparse tensor over the ranks.

    Args:
        tensor: in COO layout, of one shape on all ranks; each may have other elements.
        name: of the operation; None: the next number.
        op: Sum or Average.
        process_set: which ranks take part.

    Returns:
        The handle, which may be called, too: either way one gets the coalesced result.

    Raises:
        ConfigError: the tensor is not sparse, or `op` is another one.
    """
    problem = ""
    layout = tensor.layout if isinstance(tensor, Tensor) else type(tensor).__name__
    if layout != torch.sparse_coo:
        problem = f"sparse_allreduce takes a sparse tensor in COO layout, got {layout}"
    elif op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        problem = f"sparse_allreduce takes op Sum or Average, got {op}"
    if problem:
        return begin(ALLGATHER, [tensor], name, process_set, problem=problem)
    parts, shape = tensor.coalesce(), tuple(tensor.shape)

    def summed(handle: Handle) -> Tensor:
        places, values = handle.results
        wide = torch.float32 if values.dtype in (torch.float16, torch.bfloat16) else values.dtype
        total = torch.sparse_coo_tensor(places.t(), values.to(wide), shape, check_invariants=False).coalesce()
        if op is ReduceOp.AVERAGE:
            whole = not wide.is_floating_point
            size = process_set.size()
            values = torch.div(total.values(), size, rounding_mode="floor" if whole else None)
            total = torch.sparse_coo_tensor(
                total.indices(), values, shape, is_coalesced=True, check_invariants=False
            )
        return total.to(tensor.dtype)

    rows = [parts.indices().t(), parts.values()]
    return begin(ALLGATHER, rows, name, process_set, finish=summed, op=str(op), splits=shape)
