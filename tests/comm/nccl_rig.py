"""Ranks as threads, each with a fake CuPy and an NCCL communicator that is not made yet."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from fake_cupy import Fabric, FakeCupy

from elche.comm import memory
from elche.comm.nccl import NcclComm
from elche.comm.nccl_parts import Sum
from elche.errors import CommError, ElcheError

STREAM = 0x7F0000001230


def arrays(rank):
    """Two buckets of a rank, of sizes that are no powers of two, and room for their sums."""
    owns = [np.arange(5, dtype=np.float32) + 10 * rank, np.full(3, 0.5 + rank, np.float64)]
    return owns, [np.full_like(own, -1) for own in owns]


def parts_of(owns, sums):
    return [
        Sum(own.ctypes.data, total.ctypes.data, own.size, str(own.dtype))
        for own, total in zip(owns, sums, strict=True)
    ]


def reduce(comm, cupy, owns, sums):
    comm.launch(parts_of(owns, sums), STREAM)
    comm.wait(cupy.mark())


def ranks(n, fn, *, faults=None, options=None, seconds=20.0):
    """Run `fn(comm, cupy)` on n ranks, each with a communicator not made yet, and device 4 + rank.

    `faults` are by rank. An error on one rank reaches the others as the watch's, as a roll call does.
    """
    fabric, trouble = Fabric(), threading.Event()

    def watch():
        if trouble.is_set():
            raise CommError("processes [0] call the roll")

    def one(host):
        cupy = FakeCupy(fabric, (faults or {}).get(host.rank), **(options or {}))
        host.watch, host.deadline_seconds = watch, 5.0
        comm = NcclComm(cupy, host, 4 + host.rank)
        try:
            return fn(comm, cupy)
        except BaseException:
            trouble.set()
            raise
        finally:
            comm.close()

    return memory.run(n, one, timeout_seconds=seconds)


def outcome(fn, *args):
    """What it raised; nothing is a failure."""
    with pytest.raises(ElcheError) as caught:
        fn(*args)
    return caught.value
