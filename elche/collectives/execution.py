"""What the ranks do once they agree that an operation is next; every function here is collective.

A rank that has joined has no handle: it takes part with zeros, or with nothing, and drops the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod

import numpy as np
import torch
from torch import Tensor

from elche.collectives.handles import Handle
from elche.collectives.negotiate import Ready
from elche.collectives.ops import DTYPE_OF, ReduceOp
from elche.collectives.reduction import Reduction, all_reduce, from_bytes, reduce_rows, to_bytes
from elche.collectives.requests import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER
from elche.comm.base import Buffer, Comm
from elche.errors import ConfigError

PADDED_BYTES = 1 << 16  # up to here blocks of unequal size are padded and gathered at once
STEP_BYTES = 1 << 20  # of what goes to each rank in one step of an alltoall, so that padding stays small


def execute(comm: Comm, batch: Sequence[Ready], handles: Mapping[str, Handle]) -> None:
    """Do the operations of a batch, all of one kind.

    Args:
        comm: the ranks.
        batch: what is to be done.
        handles: this rank's, by name; they take the results.
    """
    kind = batch[0].one.kind
    if kind == ALLREDUCE:
        _all_reduce(comm, batch, handles)
    elif kind == BROADCAST:
        _broadcast(comm, batch, handles)
    elif kind == ALLGATHER:
        _all_gather(comm, batch, handles)
    elif kind == ALLTOALL:
        _all_to_all(comm, batch[0], handles)
    elif kind == REDUCESCATTER:
        _reduce_scatter(comm, batch[0], handles)
    else:  # a barrier: to have agreed on it is enough
        _give(batch, handles, [[] for _ in batch])


def rows_of_rank(num_rows: int, size: int) -> list[int]:
    """Return how many rows of a reducescatter each rank gets; the first ones one more, if need be.

    Args:
        num_rows: of the tensor.
        size: how many ranks there are.

    Returns:
        The numbers, by rank.

    Example:
        >>> rows_of_rank(8, 3)
        [3, 3, 2]
    """
    return [num_rows // size + (rank < num_rows % size) for rank in range(size)]


def _reduction(comm: Comm, ready: Ready) -> Reduction:
    one = ready.one
    return Reduction(ReduceOp(one.op), one.prescale, one.postscale, comm.size, sorted(ready.parts))


def _own(ready: Ready, handles: Mapping[str, Handle]) -> list[Tensor]:
    """Return this rank's tensors, zeros where it has joined."""
    if ready.name in handles:
        return handles[ready.name].inputs
    one = ready.one
    return [
        torch.zeros(shape, dtype=DTYPE_OF[dtype]) for dtype, shape in zip(one.dtypes, one.shapes, strict=True)
    ]


def _give(batch: Sequence[Ready], handles: Mapping[str, Handle], results: Sequence[Sequence[Tensor]]) -> None:
    """Let the handles have ended, all at once: to write a thousand results one by one takes twice as long."""
    ended = [
        (handles[ready.name], result)
        for ready, result in zip(batch, results, strict=True)
        if ready.name in handles
    ]
    pairs_of = [(handle, handle.take(result)) for handle, result in ended]
    try:
        _copy([pair for _, pairs in pairs_of for pair in pairs])
    except RuntimeError:  # a tensor cannot be written to, which concerns nobody but who gave it
        for handle, pairs in pairs_of:
            _copy_or_fail(handle, pairs)
    for handle, _ in ended:
        handle.succeed()


def _copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    if pairs:
        outputs, values = zip(*pairs, strict=True)
        with torch.inference_mode():  # elsewhere what was made in it cannot be written to
            torch._foreach_copy_(list(outputs), list(values))


def _copy_or_fail(handle: Handle, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    try:
        _copy(pairs)
    except RuntimeError as error:
        what = f"{handle.request.kind} {handle.request.name!r}"
        handle.fail(ConfigError(f"{what}: its result cannot be written to the tensor given: {error}"))


def _all_reduce(comm: Comm, batch: Sequence[Ready], handles: Mapping[str, Handle]) -> None:
    how, own = _reduction(comm, batch[0]), [_own(ready, handles) for ready in batch]
    results: list[list[Tensor]] = [[*tensors] for tensors in own]
    places: dict[torch.dtype, list[tuple[int, int]]] = {}  # in `own` and `results`
    for number, tensors in enumerate(own):
        for i, tensor in enumerate(tensors):
            places.setdefault(tensor.dtype, []).append((number, i))
    for some in places.values():
        for alike in [[place] for place in some] if how.op is ReduceOp.ADASUM else [some]:
            summed = _reduced(comm, [own[number][i] for number, i in alike], how)
            for (number, i), result in zip(alike, summed, strict=True):
                handle = handles.get(batch[number].name)
                is_kept = len(alike) > 1 and handle is not None and handle.makes_new
                # a result of 16 bytes would hold the memory of the whole batch
                results[number][i] = result.clone() if is_kept else result
    _give(batch, handles, results)


def _reduced(comm: Comm, tensors: Sequence[Tensor], how: Reduction) -> list[Tensor]:
    """Return new tensors, the reductions of these, which are of one dtype; several share memory."""
    if len(tensors) == 1:
        result = torch.empty_like(tensors[0])
        all_reduce(comm, tensors[0].view(-1), result.view(-1), how)
        return [result]
    fused_n = torch.cat([tensor.view(-1) for tensor in tensors])
    out_n = torch.empty_like(fused_n)
    all_reduce(comm, fused_n, out_n, how)
    parts = out_n.split_with_sizes([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _broadcast(comm: Comm, batch: Sequence[Ready], handles: Mapping[str, Handle]) -> None:
    root, own = batch[0].one.root, [_own(ready, handles) for ready in batch]
    if comm.rank == root:
        results = [
            [t.clone() for t in tensors] if handles[ready.name].makes_new else tensors
            for ready, tensors in zip(batch, own, strict=True)
        ]
        flat = [to_bytes(tensor) for tensors in own for tensor in tensors]
    else:
        results = [[torch.empty_like(tensor) for tensor in tensors] for tensors in own]
        flat = [to_bytes(tensor) for tensors in results for tensor in tensors]
    fused = flat[0] if len(flat) == 1 else np.concatenate(flat)
    comm.broadcast([fused], root=root)
    if comm.rank != root and len(flat) > 1:
        for one, (start, stop) in zip(flat, _spans([one.size for one in flat]), strict=True):
            one[...] = fused[start:stop]
    _give(batch, handles, results)


def _all_gather(comm: Comm, batch: Sequence[Ready], handles: Mapping[str, Handle]) -> None:
    """Gather the rows of each rank, all tensors of the batch in one message of each."""
    tensors = [(ready, i) for ready in batch for i in range(len(ready.one.shapes))]
    rows = [
        [ready.parts[rank].shapes[i][0] if rank in ready.parts else 0 for rank in range(comm.size)]
        for ready, i in tensors
    ]
    widths = [prod(ready.one.shapes[i][1:]) * DTYPE_OF[ready.one.dtypes[i]].itemsize for ready, i in tensors]
    spans_w = [
        _spans([rows_w[rank] * width for rows_w, width in zip(rows, widths, strict=True)])
        for rank in range(comm.size)
    ]
    mine = [to_bytes(tensor) for ready in batch if ready.name in handles for tensor in _own(ready, handles)]
    own = mine[0] if len(mine) == 1 else np.concatenate([np.empty(0, np.uint8), *mine])
    blocks = _gather_blocks(comm, own, [spans[-1][1] if spans else 0 for spans in spans_w])
    results: dict[str, list[Tensor]] = {ready.name: [] for ready in batch}
    for number, (ready, i) in enumerate(tensors):
        parts = [block[slice(*spans[number])] for block, spans in zip(blocks, spans_w, strict=True)]
        shape = (sum(rows[number]), *ready.one.shapes[i][1:])
        results[ready.name].append(_tensor(np.concatenate(parts), ready.one.dtypes[i], shape))
        if ready.name in handles:
            handle = handles[ready.name]
            handle.sizes = handle.sizes or rows[number]
            handle.starts.append(sum(rows[number][: comm.rank]))
    _give(batch, handles, list(results.values()))


def _gather_blocks(comm: Comm, own: Buffer, sizes: Sequence[int]) -> list[Buffer]:
    """Return every rank's bytes, of known sizes."""
    longest = max(sizes)
    if min(sizes) == longest:
        return list(comm.all_gather(own))
    if longest <= PADDED_BYTES:
        padded = np.zeros(longest, np.uint8)
        padded[: own.size] = own
        return [row[:size] for row, size in zip(comm.all_gather(padded), sizes, strict=True)]
    blocks = [own if rank == comm.rank else np.empty(size, np.uint8) for rank, size in enumerate(sizes)]
    for root, block in enumerate(blocks):
        if block.size:
            comm.broadcast([block], root=root)
    return blocks


def _all_to_all(comm: Comm, ready: Ready, handles: Mapping[str, Handle]) -> None:
    """Send each rank its rows; what goes to a rank that has joined is dropped there."""
    one, ranks = ready.one, range(comm.size)
    width = prod(one.shapes[0][1:]) * DTYPE_OF[one.dtypes[0]].itemsize
    sent = [ready.parts[rank].splits if rank in ready.parts else (0,) * comm.size for rank in ranks]
    own = to_bytes(handles[ready.name].inputs[0]) if ready.name in handles else np.empty(0, np.uint8)
    to = [own[slice(*span)] for span in _spans([rows * width for rows in sent[comm.rank]])]
    heard = [np.empty(splits[comm.rank] * width, np.uint8) for splits in sent]
    longest = max(max(splits) for splits in sent) * width
    for start in range(0, longest, STEP_BYTES):
        step = min(STEP_BYTES, longest - start)
        rows = np.zeros((comm.size, step), np.uint8)
        for row, block in zip(rows, to, strict=True):
            part = block[start : start + step]
            row[: part.size] = part
        for row, block in zip(comm.all_to_all(rows), heard, strict=True):
            part = block[start : start + step]
            part[...] = row[: part.size]
    if ready.name in handles:
        sizes = [splits[comm.rank] for splits in sent]
        handles[ready.name].sizes = sizes
        shape = (sum(sizes), *one.shapes[0][1:])
        _give([ready], handles, [[_tensor(np.concatenate(heard), one.dtypes[0], shape)]])


def _reduce_scatter(comm: Comm, ready: Ready, handles: Mapping[str, Handle]) -> None:
    how, results = _reduction(comm, ready), []
    for tensor in _own(ready, handles):
        shares = rows_of_rank(tensor.shape[0], comm.size)
        rows_wn = tensor.new_zeros(comm.size, shares[0] * prod(tensor.shape[1:]))
        for row_n, share in zip(rows_wn, tensor.split_with_sizes(shares), strict=True):
            row_n[: share.numel()] = share.reshape(-1)
        shape = (shares[comm.rank], *tensor.shape[1:])
        results.append(reduce_rows(comm, rows_wn, how)[: prod(shape)].reshape(shape))
    _give([ready], handles, [results])


def _spans(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return where pieces of these sizes begin and end, one behind the other."""
    return list(pairwise(accumulate(sizes, initial=0)))


def _tensor(flat: Buffer, dtype: str, shape: Sequence[int]) -> Tensor:
    return from_bytes(flat[None], DTYPE_OF[dtype]).reshape(tuple(shape))
