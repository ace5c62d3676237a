"""The NCCL communicator against a recording fake of CuPy: what it calls, and in which order."""

from __future__ import annotations

import gc
import inspect
import re

import numpy as np
import pytest
from fake_cupy import FakeCupy
from nccl_rig import STREAM, arrays, parts_of, ranks, reduce

from elche.comm import memory
from elche.comm.nccl import NcclComm

MADE = ["allReduce", "allGather", "send", "recv", "check_async_error", "abort", "destroy"]
REDUCE = ["setDevice", "groupStart", "allReduce", "allReduce", "groupEnd"]


def signatures(owner, names):
    """By name, the arguments without `self`."""
    return {
        name: [key for key in inspect.signature(getattr(owner, name)).parameters if key != "self"]
        for name in names
    }


def test_the_fake_is_like_the_real_one():
    try:
        import cupy
        from cupy.cuda import nccl as real
    except ImportError:
        pytest.skip("CuPy is not installed")
    except UserWarning:  # it warns of that
        pytest.skip("CuPy finds no NCCL")
    if not real.available:
        pytest.skip("CuPy finds no NCCL")
    fake = FakeCupy(chars=None if int(cupy.__version__.split(".")[0]) >= 14 else np.int8)
    kind = fake.cuda.nccl.NcclCommunicator
    for name, arguments in signatures(kind, MADE).items():
        shown = getattr(real.NcclCommunicator, name).__doc__.splitlines()[0]
        told = re.search(r"\((.*)\)", shown)
        assert told is not None
        assert [word.split()[-1] for word in told[1].split(",")][1:] == arguments, name
    for name in ("NCCL_SUM", "NCCL_UINT8", "NCCL_FLOAT32", "NCCL_FLOAT64"):
        assert getattr(real, name) == getattr(fake.cuda.nccl, name)
    for status in range(10):
        errors = []
        for package in (real, fake.cuda.nccl):
            with pytest.raises((RuntimeError, KeyError)) as caught:
                raise package.NcclError(status)
            errors.append(caught.value)
        assert type(errors[0]).__name__ == type(errors[1]).__name__
        assert getattr(errors[0], "status", None) == getattr(errors[1], "status", None)
    unmade = real.NcclCommunicator.__new__(real.NcclCommunicator)
    assert unmade.comm == kind.__new__(kind).comm == 0
    unmade.abort()
    unmade.destroy()
    with pytest.raises(TypeError):
        unmade.__init__("two", bytes(128), 0)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_sums_and_calls(n):
    def live(comm, cupy):
        assert comm.connect() is None
        owns, sums = arrays(comm.host.rank)
        reduce(comm, cupy, owns, sums)
        again = [np.zeros_like(total) for total in sums]
        reduce(comm, cupy, owns, again)
        return cupy.calls, parts_of(owns, sums), owns, sums, again

    for rank, (calls, parts, owns, sums, again) in enumerate(ranks(n, live)):
        tens = 10 * n * (n - 1) // 2
        for total in (sums, again):
            assert total[0].tolist() == [tens, tens + n, tens + 2 * n, tens + 3 * n, tens + 4 * n]
            assert total[1].tolist() == [0.5 * n + n * (n - 1) / 2] * 3
        assert owns[0].tolist() == [10 * rank + i for i in range(5)]
        calls = [call for call in calls if call[0] != "check_async_error"]
        first = [("get_unique_id",)] if rank == 0 else []
        assert calls[: len(first) + 2] == [*first, ("setDevice", 4 + rank), ("init", 0, n, rank)]
        assert calls[len(first) + 2 :][:5] == [
            ("setDevice", 4 + rank),
            ("groupStart",),
            ("allReduce", 0, parts[0].send, parts[0].recv, 5, 7, 0, STREAM),
            ("allReduce", 0, parts[1].send, parts[1].recv, 3, 8, 0, STREAM),
            ("groupEnd",),
        ]
        assert [name for name, *_ in calls[len(first) + 7 :]] == [*REDUCE, "abort", "destroy"]


def test_the_end_of_a_sum_is_checked():
    calls = ranks(2, lambda comm, cupy: (comm.connect(), reduce(comm, cupy, *arrays(0)), cupy.names())[-1])
    assert all(names[-1] == "check_async_error" for names in calls)


@pytest.mark.parametrize("chars", [np.int8, np.uint8])
def test_an_older_cupy_gets_its_id_as_chars(chars):
    def live(comm, cupy):
        assert comm.connect() is None
        owns, sums = arrays(comm.host.rank)
        reduce(comm, cupy, owns, sums)
        return sums[1].tolist()

    assert ranks(2, live, options={"chars": chars}) == [[2.0] * 3] * 2


@pytest.mark.parametrize("where", [("init", 0), ("allReduce", 0), ("allReduce", 1), ("groupEnd", 0)])
def test_in_progress_is_no_failure(where):
    def live(comm, cupy):
        assert comm.connect() is None
        owns, sums = arrays(comm.host.rank)
        reduce(comm, cupy, owns, sums)
        return sums[1].tolist(), comm.failed

    faults = {0: {where: 7, ("check_async_error", 0): 7, ("check_async_error", 1): 7}}
    assert ranks(2, live, faults=faults) == [([2.0] * 3, None)] * 2


def test_what_is_left_open_is_aborted_and_warns():
    host = memory.single()
    cupy = FakeCupy()
    comm = NcclComm(cupy, host, 0)
    assert comm.connect() is None
    holder = [comm]
    del comm
    with pytest.warns(ResourceWarning, match="left open"):
        holder.clear()
    assert cupy.names()[-2:] == ["abort", "destroy"]


def test_closing_may_be_repeated_and_leaves_nothing_to_the_collector():
    cupy = FakeCupy()
    comm = NcclComm(cupy, memory.single(), 0)
    assert comm.connect() is None
    comm.close()
    comm.close()
    comm.end()
    del comm
    gc.collect()  # a warning would be an error
    assert cupy.names()[-2:] == ["abort", "destroy"]
    assert cupy.names().count("abort") == 1
