"""Operations that return when they have ended; gradients flow through those that are not in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from elche.collectives import asynchronous, autograd, process_sets
from elche.collectives.asynchronous import synchronize
from elche.collectives.begin import begin
from elche.collectives.handles import Handle
from elche.collectives.ops import ReduceOp
from elche.collectives.process_sets import ProcessSet, global_process_set
from elche.collectives.requests import BARRIER, JOIN, JOIN_NAME, Request


class Compressed(Protocol):
    """A member of `elche.Compression`."""

    @property
    def dtype(self) -> torch.dtype | None:
        """What tensors travel as; None: as they are."""
        ...


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressed | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return postscale_factor * op over the ranks of (prescale_factor * tensor), the same on every rank.

    Args:
        tensor: of one shape and dtype on all ranks; it stays as it is.
        average: Horovod's older way to say op: True for Average, False for Sum.
        name: of the operation, so that ranks may begin several in any order; None: the next number.
        compression: what it travels as, `elche.Compression.fp16` or `bf16`.
        op: Average (where nothing is said), Sum, Min, Max, Product or Adasum.
        prescale_factor: the factor before.
        postscale_factor: the factor after.
        process_set: which ranks take part.

    Returns:
        The result, a new tensor.

    Raises:
        ConfigError: this rank's call is wrong in itself.
        OperationMismatchError: the ranks' calls differ.
        HorovodInternalError: a rank was lost, or did not come in time.
    """
    scales = prescale_factor, postscale_factor
    return grouped_allreduce([tensor], average, name, compression, op, *scales, process_set)[0]


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressed | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Return what `allreduce` makes of each tensor, all in one operation."""
    tensors = list(tensors)
    how = (average, op, prescale_factor, postscale_factor)
    results = autograd.apply(autograd.Allreduce, how, name, process_set, *_pack(tensors, compression))
    return _unpack(results, tensors)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Do what `allreduce` does, in place; return `tensor`."""
    scales = prescale_factor, postscale_factor
    result: Tensor = synchronize(
        asynchronous.allreduce_async_(tensor, average, name, op, *scales, process_set)
    )
    return result


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Do what `grouped_allreduce` does, in place; return `tensors`."""
    scales = prescale_factor, postscale_factor
    handle = asynchronous.grouped_allreduce_async_(tensors, average, name, op, *scales, process_set)
    results: list[Tensor] = synchronize(handle)
    return results


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Return all ranks' tensors along the first dimension, in rank order.

    Args:
        tensor: its first dimension may differ from the other ranks'.
        name: of the operation; None: the next number.
        process_set: which ranks take part.

    Returns:
        The same new tensor on every rank.
    """
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Return what `allgather` makes of each tensor, all in one operation."""
    return list(autograd.apply(autograd.Allgather, name, process_set, *tensors))


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Return the tensor of rank `root_rank`.

    Args:
        tensor: of one shape and dtype on all ranks; only the root's values count.
        root_rank: whose; its number among all ranks, also in a process set.
        name: of the operation; None: the next number.
        process_set: which ranks take part.

    Returns:
        A new tensor.
    """
    result: Tensor = autograd.apply(autograd.Broadcast, root_rank, name, process_set, tensor)
    return result


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Overwrite `tensor` with that of rank `root_rank`, and return it."""
    result: Tensor = synchronize(asynchronous.broadcast_async_(tensor, root_rank, name, process_set))
    return result


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send some rows of `tensor` to each rank.

    Args:
        tensor: the first rows go to rank 0, the next to rank 1, and so on.
        splits: how many to each; None: equally many.
        name: of the operation; None: the next number.
        process_set: which ranks take part.

    Returns:
        The rows that came, in rank order; with `splits` also how many came from each rank, in int32.
    """
    return autograd.apply(autograd.Alltoall, splits, name, process_set, tensor)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Compressed | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Return this rank's rows of what `allreduce` would return.

    Args:
        tensor: of one shape and dtype on all ranks. Where its rows do not divide by the ranks, the first
            ranks get one more.
        name: of the operation; None: the next number.
        compression: what it travels as.
        op: Average, Sum, Min, Max or Product.
        process_set: which ranks take part.
        prescale_factor: the factor before.
        postscale_factor: the factor after.

    Returns:
        A new tensor.
    """
    scales = prescale_factor, postscale_factor
    return grouped_reducescatter([tensor], name, compression, op, process_set, *scales)[0]


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: Compressed | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Return what `reducescatter` makes of each tensor, all in one operation."""
    tensors = list(tensors)
    how = (op, prescale_factor, postscale_factor)
    results = autograd.apply(autograd.Reducescatter, how, name, process_set, *_pack(tensors, compression))
    return _unpack(results, tensors)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return once all ranks have called this."""
    synchronize(begin(BARRIER, [], None, process_set))


def join(device: int = -1) -> int:  # noqa: ARG001 - Horovod has it
    """Let the others' operations go on without this rank, until all have joined.

    To a sum or average it contributes zeros, so an average is still divided by all ranks; to any other
    operation it contributes nothing. What is sent to it is dropped.

    Args:
        device: Horovod's; a GPU needs none, since sums are made on the host.

    Returns:
        The rank that joined last.
    """
    handle = process_sets.current().everybody.submit(Handle(Request(JOIN, JOIN_NAME)))
    synchronize(handle)
    return handle.last


def _pack(tensors: Sequence[Tensor], compression: Compressed | None) -> list[Tensor]:
    wire = None if compression is None else compression.dtype
    return [
        tensor.to(wire)
        if wire is not None and isinstance(tensor, Tensor) and tensor.is_floating_point()
        else tensor
        for tensor in tensors
    ]


def _unpack(results: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    return [result.to(tensor.dtype) for result, tensor in zip(results, like, strict=True)]
