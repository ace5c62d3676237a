"""What is refused on the rank that asks for it; the others are told, so that they need not wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from operator import index
from typing import Any

import torch
from torch import Tensor

from elche.collectives.ops import DTYPES, ReduceOp
from elche.collectives.requests import ALLGATHER, ALLREDUCE, ALLTOALL, REDUCESCATTER, Request


def reduce_op(average: bool | None, op: ReduceOp | None) -> tuple[ReduceOp, str]:
    """Return which reduction is meant, an average where nothing is said, and what is wrong with it.

    Args:
        average: Horovod's older way: True for an average, False for a sum.
        op: the reduction.

    Returns:
        The reduction, and a text that is empty where it is one.
    """
    if average is not None and op is not None:
        why = f"the op parameter supersedes average, provide only one, got {average} and {op}"
        return ReduceOp.AVERAGE, why
    if average is not None:
        return ReduceOp.AVERAGE if average else ReduceOp.SUM, ""
    if op is not None and not isinstance(op, ReduceOp):
        why = f"op must be elche.Average, Sum, Min, Max, Product or Adasum, got {op!r}"
        return ReduceOp.AVERAGE, why
    return op or ReduceOp.AVERAGE, ""


def factors(prescale: Any, postscale: Any) -> tuple[tuple[float, float], str]:
    """Return the factors before and after a reduction, and what is wrong with them; empty: nothing."""
    try:
        told = float(prescale), float(postscale)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return (1.0, 1.0), f"prescale and postscale factors must be numbers, got {prescale!r}, {postscale!r}"
    if not all(map(isfinite, told)):
        return told, f"prescale and postscale factors must be finite, got {told[0]}, {told[1]}"
    return told, ""


def split_rows(tensor: Tensor, splits: Any, size: int) -> tuple[tuple[int, ...], str]:
    """Return how many rows of `tensor` go to each rank, and what is wrong with it.

    Args:
        tensor: what is sent.
        splits: how many rows go to each rank, a tensor or a sequence; None: equally many.
        size: how many ranks there are.

    Returns:
        The numbers of rows, and a text that is empty where they can be sent.
    """
    rows = tensor.shape[0] if isinstance(tensor, Tensor) and tensor.dim() else 0
    if splits is None:
        if rows % size:
            return (), f"without splits the rows must divide by {size} ranks, got {rows} rows"
        return (rows // size,) * size, ""
    if isinstance(splits, Tensor):
        if splits.dim() != 1 or splits.is_floating_point() or splits.dtype == torch.bool:
            shape = tuple(splits.shape)
            return (), f"splits must be a one-dimensional tensor of integers, got {splits.dtype} {shape}"
        splits = splits.tolist()
    try:
        told = tuple(_whole(split) for split in splits)
    except TypeError:
        return (), f"splits must be integers, got {splits!r}"
    if len(told) != size:
        return (), f"splits must have one entry for each of {size} ranks, got {list(told)}"
    if min(told) < 0:
        return (), f"splits must be at least 0, got {list(told)}"
    if sum(told) > rows:
        return (
            (),
            f"sum of splits entries is greater than the tensor's first dimension, {rows}: {list(told)}",
        )
    return told, ""


def _whole(split: Any) -> int:
    if isinstance(split, bool):  # whose index is 0 or 1
        raise TypeError
    return index(split)


def problem_of(request: Request, tensors: Sequence[Tensor]) -> str:
    """Return what is wrong with one rank's call, whatever the others say; empty if it is right.

    Args:
        request: what it says to the others.
        tensors: its tensors.

    Returns:
        The text, with the value and the bound.
    """
    strange = [type(tensor).__name__ for tensor in tensors if not isinstance(tensor, Tensor)]
    if strange:
        return f"{request.kind} takes tensors, got {strange[0]}"
    unknown = [str(tensor.dtype) for tensor in tensors if tensor.dtype not in DTYPES]
    if unknown:
        return f"data type must be one of {', '.join(DTYPES.values())}, got {unknown[0]}"
    if any(tensor.layout != torch.strided for tensor in tensors):
        return "tensors must be dense; sparse_allreduce_async takes sparse ones"
    if request.kind in (ALLGATHER, ALLTOALL, REDUCESCATTER) and any(not tensor.dim() for tensor in tensors):
        return f"{request.kind} takes tensors of at least one dimension, got one of none"
    if request.kind in (ALLREDUCE, REDUCESCATTER):
        return _problem_of_reduction(request, tensors)
    return ""


def _problem_of_reduction(request: Request, tensors: Sequence[Tensor]) -> str:
    op = ReduceOp(request.op)
    for tensor in tensors:
        if op is ReduceOp.ADASUM and not tensor.is_floating_point():
            return f"Adasum takes floating point tensors, got {tensor.dtype}"
        scaled = op is ReduceOp.AVERAGE or (request.prescale, request.postscale) != (1.0, 1.0)
        if tensor.dtype == torch.bool and scaled:
            return f"bool tensors have no average and no factors, got op {op}"
    if op is ReduceOp.ADASUM and request.kind == REDUCESCATTER:
        return "reducescatter has no Adasum"
    return ""
