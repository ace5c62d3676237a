"""Gradients through the operations: of the sum over all ranks of their losses, by each rank's input.

A backward operation has its forward's name with ".backward" behind it, so that graphs which are walked in a
different order on every rank still meet. Ranks must ask for gradients alike, as in any such scheme.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from elche.collectives.asynchronous import (
    alltoall_async,
    broadcast_async,
    grouped_allgather_async,
    grouped_allreduce_async,
    grouped_reducescatter_async,
    synchronize,
)
from elche.collectives.handles import Handle
from elche.collectives.ops import ReduceOp
from elche.collectives.process_sets import ProcessSet
from elche.collectives.reduction import Reduction, fold
from elche.errors import ConfigError

LINEAR = (ReduceOp.SUM, ReduceOp.AVERAGE)
EXTREMES = (ReduceOp.MIN, ReduceOp.MAX)


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Return what a function returns, and let gradients flow through it."""
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


def _own(results: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return results that may be changed in place: autograd refuses that to views among several outputs."""
    return tuple(result.detach() for result in results)


def _how(handle: Handle) -> tuple[ReduceOp, float, float]:
    request = handle.request
    return ReduceOp(request.op), request.prescale, request.postscale


class Allreduce(torch.autograd.Function):
    """y = post * op over ranks of (pre * x): a sum or an average of gradients comes back.

    Min and Max bring the sum of gradients to the ranks that had the extreme, in equal parts.
    """

    @staticmethod
    def forward(
        ctx: Any, how: tuple[Any, ...], name: str | None, process_set: ProcessSet, *tensors: Tensor
    ) -> Any:
        """Reduce."""
        average, op, prescale, postscale = how
        handle = grouped_allreduce_async(tensors, average, name, op, prescale, postscale, process_set)
        results = _own(synchronize(handle))
        ctx.how, ctx.name, ctx.process_set = _how(handle), handle.request.name, process_set
        if ctx.how[0] in EXTREMES:
            ctx.save_for_backward(*tensors, *results)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Reduce the gradients."""
        op, prescale, postscale = ctx.how
        name, process_set = f"{ctx.name}.backward", ctx.process_set
        if op in LINEAR:
            how = (None, name, op, prescale, postscale, process_set)
            back = synchronize(grouped_allreduce_async(grads, *how))
        elif op in EXTREMES:
            back = _of_extremes(ctx, grads, name)
        else:
            raise ConfigError(f"no gradient flows through allreduce {ctx.name!r} with op {op}")
        return (None, None, None, *back)


def _of_extremes(ctx: Any, grads: tuple[Tensor, ...], name: str) -> list[Tensor]:
    op, prescale, postscale = ctx.how
    inputs, results = ctx.saved_tensors[: len(grads)], ctx.saved_tensors[len(grads) :]
    alone = Reduction(op, prescale, postscale, 1, [0])
    own = [
        (fold(x.detach().reshape(1, -1), alone).reshape(x.shape) == y).to(grad.dtype)
        for x, y, grad in zip(inputs, results, grads, strict=True)
    ]
    handle = grouped_allreduce_async([*grads, *own], None, name, ReduceOp.SUM, process_set=ctx.process_set)
    totals = synchronize(handle)
    shared = zip(own, totals[: len(own)], totals[len(own) :], strict=True)
    return [mask * total * (prescale * postscale) / count for mask, total, count in shared]


class Allgather(torch.autograd.Function):
    """y = the ranks' rows, one below the other: each rank gets the sum of what its rows were given."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor) -> Any:
        """Gather."""
        handle = grouped_allgather_async(tensors, name, process_set)
        results = _own(synchronize(handle))
        ctx.name, ctx.process_set = handle.request.name, process_set
        ctx.rows, ctx.starts = [tensor.shape[0] for tensor in tensors], handle.starts
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Sum over the ranks, and take what belongs to one's own rows."""
        name = f"{ctx.name}.backward"
        sums = synchronize(
            grouped_allreduce_async(grads, None, name, ReduceOp.SUM, process_set=ctx.process_set)
        )
        own = [
            total.narrow(0, start, rows)
            for total, start, rows in zip(sums, ctx.starts, ctx.rows, strict=True)
        ]
        return (None, None, *own)


class Broadcast(torch.autograd.Function):
    """y = the root's x: the root gets the sum of the gradients, the others get zeros."""

    @staticmethod
    def forward(ctx: Any, root: int, name: str | None, process_set: ProcessSet, tensor: Tensor) -> Any:
        """Broadcast."""
        handle = broadcast_async(tensor, root, name, process_set)
        ctx.root, ctx.name, ctx.process_set = handle.request.root, handle.request.name, process_set
        return _own([synchronize(handle)])[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Sum over the ranks, for the root."""
        name = f"{ctx.name}.backward"
        (total,) = synchronize(
            grouped_allreduce_async(grads, None, name, ReduceOp.SUM, process_set=ctx.process_set)
        )
        is_root = ctx.process_set.rank() == ctx.root
        return None, None, None, total if is_root else torch.zeros_like(total)


class Alltoall(torch.autograd.Function):
    """y = what each rank had for this one: gradients go back to where the rows came from."""

    @staticmethod
    def forward(ctx: Any, splits: Any, name: str | None, process_set: ProcessSet, tensor: Tensor) -> Any:
        """Exchange."""
        handle = alltoall_async(tensor, splits, name, process_set)
        result = synchronize(handle)
        ctx.name, ctx.process_set, ctx.sizes = handle.request.name, process_set, handle.sizes
        ctx.rows = tensor.shape[0]
        if splits is None:
            return _own([result])[0]
        rows, sizes = _own(result)
        ctx.mark_non_differentiable(sizes)
        return rows, sizes

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Exchange the other way round."""
        name = f"{ctx.name}.backward"
        handle = alltoall_async(grads[0], ctx.sizes, name, ctx.process_set)
        back, _ = synchronize(handle)
        unsent = ctx.rows - back.shape[0]
        if unsent:
            back = torch.cat([back, back.new_zeros(unsent, *back.shape[1:])])
        return None, None, None, back


class Reducescatter(torch.autograd.Function):
    """y = this rank's rows of the sum or average: each rank's x gets the gradients of all rows."""

    @staticmethod
    def forward(
        ctx: Any, how: tuple[Any, ...], name: str | None, process_set: ProcessSet, *tensors: Tensor
    ) -> Any:
        """Reduce, and scatter."""
        op, prescale, postscale = how
        handle = grouped_reducescatter_async(tensors, name, op, process_set, prescale, postscale)
        ctx.how, ctx.name, ctx.process_set = _how(handle), handle.request.name, process_set
        return _own(synchronize(handle))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gather the gradients."""
        op, prescale, postscale = ctx.how
        if op not in LINEAR:
            raise ConfigError(f"no gradient flows through reducescatter {ctx.name!r} with op {op}")
        factor = prescale * postscale / (ctx.process_set.size() if op is ReduceOp.AVERAGE else 1)
        handle = grouped_allgather_async(grads, f"{ctx.name}.backward", ctx.process_set)
        return (None, None, None, *(grad * factor for grad in synchronize(handle)))
