"""Which operations travel together: many small ones in one flat buffer cost as much as one."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from elche.collectives.negotiate import Ready
from elche.collectives.ops import DTYPE_OF, ReduceOp
from elche.collectives.requests import ALLGATHER, ALLREDUCE, BROADCAST, Request

FUSION_BYTES = 64 << 20


def num_bytes(request: Request) -> int:
    """Return how much one rank sends for an operation."""
    sizes = (DTYPE_OF[dtype].itemsize for dtype in request.dtypes)
    return sum(prod(shape) * size for shape, size in zip(request.shapes, sizes, strict=True))


def batches(ready: Sequence[Ready], most_bytes: int = FUSION_BYTES) -> list[list[Ready]]:
    """Return the operations in groups that can be done at once; the same on every rank.

    Args:
        ready: in the order the ranks agree on.
        most_bytes: how much a batch of more than one may hold, by its largest parts.

    Returns:
        The batches, in order of their first operations.
    """
    found: list[list[Ready]] = []
    open_batches: dict[object, tuple[list[Ready], int]] = {}  # by what they have in common, with their bytes
    for one in ready:
        key = _alike(one)
        parts = one.parts.values() if one.one.kind == ALLGATHER else [one.one]  # others' are equal
        size = max(map(num_bytes, parts))
        batch, filled = open_batches.get(key, ([], 0))
        if key is None or not batch or filled + size > most_bytes:
            batch, filled = [], 0
            found.append(batch)
        batch.append(one)
        open_batches[key] = batch, filled + size
    return found


def _alike(ready: Ready) -> object:
    """Return what operations that can be done at once have in common; None: this one is done alone."""
    one = ready.one
    if one.kind not in (ALLREDUCE, ALLGATHER, BROADCAST) or one.op == str(ReduceOp.ADASUM):
        return None
    return one.kind, one.op, one.prescale, one.postscale, one.root, tuple(sorted(ready.parts))
