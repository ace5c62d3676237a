"""What NCCL's calls do, once all ranks have made theirs: by rank, on the memory that their pointers name."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

TYPES = {1: ctypes.c_uint8, 7: ctypes.c_float, 8: ctypes.c_double}


def add_up(calls):
    """Sum over the ranks, in their order."""
    assert len({tuple(args[2:5]) for args in calls}) == 1, "the ranks sum different things"
    total = array_at(calls[0][0], *calls[0][2:4]).copy()
    for send, _, *kind, _, _ in calls[1:]:
        total += array_at(send, *kind)
    for _, recv, *kind, _, _ in calls:
        array_at(recv, *kind)[:] = total


def gather(calls):
    """Give every rank what all have, in rank order."""
    assert len({tuple(args[2:4]) for args in calls}) == 1, "the ranks gather different things"
    everything = np.concatenate([array_at(send, *kind) for send, _, *kind, _ in calls])
    for _, recv, count, datatype, _ in calls:
        array_at(recv, count * len(calls), datatype)[:] = everything


def pass_on(groups):
    """Move what is sent to the recvs of the same group, in their order for each pair of ranks."""
    sent, taken = {}, {}
    for rank, ops in enumerate(groups):
        for name, *args in ops:
            if name in ("send", "recv"):
                pointer, count, datatype, peer, _ = args
                pair, ends = ((rank, peer), sent) if name == "send" else ((peer, rank), taken)
                ends.setdefault(pair, []).append((pointer, count, datatype))
    kinds = [{pair: [end[1:] for end in ends[pair]] for pair in ends} for ends in (sent, taken)]
    assert kinds[0] == kinds[1], "a send without its recv, or of another size"
    moves = [(array_at(*end).copy(), taken[pair][k]) for pair in sent for k, end in enumerate(sent[pair])]
    for content, end in moves:
        array_at(*end)[:] = content


def array_at(pointer: int, count: int, datatype: int) -> Any:
    """The memory that a pointer names."""
    return np.ctypeslib.as_array((TYPES[datatype] * count).from_address(pointer))
