"""Reductions over the ranks, of flat tensors on the CPU.

Sums that numpy and MPI can make go through `Comm.all_reduce`. All others go by shards: all to all, so that
rank r has shard r of every rank's values; each reduces its shard in rank order; an all-gather brings all
shards to all. Every element is reduced on one rank, so all ranks have the same bits.

Legend: `_n`, elements; `_wn`, a row of elements from each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from elche.collectives.ops import ReduceOp
from elche.comm.base import Buffer, Comm

SUMMED = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64}


class Reduction(NamedTuple):
    """What is made of the ranks' values: postscale * reduced(prescale * value).

    Attributes:
        op: how they are reduced.
        prescale: the factor before.
        postscale: the factor after.
        size: what an average divides by.
        active: the ranks whose values count; the others have joined.
    """

    op: ReduceOp
    prescale: float
    postscale: float
    size: int
    active: Sequence[int]


def all_reduce(comm: Comm, own_n: Tensor, out_n: Tensor, how: Reduction) -> None:
    """Reduce over the ranks; collective.

    Args:
        comm: the ranks.
        own_n: this rank's values; zeros on one that has joined. They stay as they are.
        out_n: becomes the result, the same bits on every rank; shares no memory with `own_n`.
        how: the reduction.
    """
    if how.op is ReduceOp.ADASUM:
        rows_wn = from_bytes(comm.all_gather(to_bytes(own_n)), own_n.dtype)
        out_n.copy_(fold(rows_wn, how))
    elif how.op in (ReduceOp.SUM, ReduceOp.AVERAGE) and own_n.dtype in SUMMED:
        scaled_n = _scaled(own_n, how.prescale)
        comm.all_reduce([scaled_n.numpy()], [out_n.numpy()])
        out_n.copy_(_finished(out_n, how))
    else:
        width = -(-own_n.numel() // comm.size)
        padded_wn = own_n.new_zeros(comm.size, width)
        padded_wn.view(-1)[: own_n.numel()] = own_n
        shard_n = reduce_rows(comm, padded_wn, how)
        rows_wn = from_bytes(comm.all_gather(to_bytes(shard_n)), own_n.dtype)
        out_n.copy_(rows_wn.reshape(-1)[: own_n.numel()])


def reduce_rows(comm: Comm, rows_wn: Tensor, how: Reduction) -> Tensor:
    """Return the reduction of the row that each rank has for this one; collective.

    Args:
        comm: the ranks.
        rows_wn: a row for each rank, all of one length.
        how: the reduction.

    Returns:
        This rank's reduced row.
    """
    sent = to_bytes(rows_wn).reshape(comm.size, -1)
    return fold(from_bytes(comm.all_to_all(sent), rows_wn.dtype), how)


def fold(rows_wn: Tensor, how: Reduction) -> Tensor:
    """Return the reduction of the active ranks' rows, in rank order.

    Args:
        rows_wn: every rank's values.
        how: the reduction.

    Returns:
        The result, of the same dtype.

    Example:
        >>> rows_wn = torch.tensor([[1, 5], [3, 4]])
        >>> fold(rows_wn, Reduction(ReduceOp.AVERAGE, 1.0, 10.0, 2, [0, 1])).tolist()
        [20, 40]
    """
    dtype = rows_wn.dtype
    rows_wn = rows_wn[list(how.active)]
    if how.op is ReduceOp.ADASUM:
        return _adasum(rows_wn, how)
    if dtype is torch.bool:
        every = how.op in (ReduceOp.MIN, ReduceOp.PRODUCT)
        return rows_wn.all(0) if every else rows_wn.any(0)
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    rows_wn = _scaled(rows_wn.to(wide), how.prescale)
    if how.op is ReduceOp.MIN:
        out_n = rows_wn.amin(0)
    elif how.op is ReduceOp.MAX:
        out_n = rows_wn.amax(0)
    elif how.op is ReduceOp.PRODUCT:
        out_n = rows_wn.prod(0, dtype=wide)
    else:
        out_n = rows_wn.sum(0, dtype=wide)
    return _finished(out_n, how).to(dtype)


def to_bytes(value: Tensor) -> Buffer:
    """Return a contiguous CPU tensor's memory as flat bytes; numpy knows no bfloat16."""
    value_n = value.detach().reshape(-1)
    if value_n.stride(0) != 1:  # one element of an expanded tensor, which passes for contiguous
        value_n = value_n.clone(memory_format=torch.contiguous_format)
    bytes_n: Buffer = value_n.view(torch.uint8).numpy()
    return bytes_n


def from_bytes(rows: Buffer, dtype: torch.dtype) -> Tensor:
    """Return rows of bytes as rows of elements, without a copy."""
    if rows.size == 0:
        return torch.empty(rows.shape[0], 0, dtype=dtype)
    return torch.from_numpy(np.ascontiguousarray(rows)).view(dtype)


def _scaled(value: Tensor, factor: float) -> Tensor:
    """Return value * factor; integers are rounded towards zero after it."""
    if factor == 1.0:
        return value
    if value.is_floating_point():
        return value * factor
    return (value.double() * factor).to(value.dtype)


def _finished(sum_n: Tensor, how: Reduction) -> Tensor:
    """Return the reduction of what was summed: divided by the ranks for an average, then postscaled."""
    if how.op is ReduceOp.AVERAGE:
        whole = not sum_n.is_floating_point()
        sum_n = torch.div(sum_n, how.size, rounding_mode="floor" if whole else None)
    return _scaled(sum_n, how.postscale)


def _adasum(rows_wn: Tensor, how: Reduction) -> Tensor:
    """Return the ranks' Adasum, pair by pair: a and b orthogonal are added, a and b equal are averaged.

    adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b
    """
    rows: list[Tensor] = [row_n.double() * how.prescale for row_n in rows_wn]
    while len(rows) > 1:
        pairs = [_adasum_pair(*rows[i : i + 2]) for i in range(0, len(rows) - 1, 2)]
        rows = pairs + rows[2 * len(pairs) :]
    scaled_n: Tensor = rows[0] * how.postscale
    return scaled_n.to(rows_wn.dtype)


def _adasum_pair(a_n: Tensor, b_n: Tensor) -> Tensor:
    product = torch.dot(a_n, b_n)
    if not (a_n.any() and b_n.any()):
        return torch.add(a_n, b_n)
    of_a, of_b = (1.0 - product / (2.0 * torch.dot(one_n, one_n)) for one_n in (a_n, b_n))
    sum_n: Tensor = of_a * a_n + of_b * b_n
    return sum_n
