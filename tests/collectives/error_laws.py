"""Calls that differ, or are wrong: an error on every rank that says who differs, and the job goes on."""

from __future__ import annotations

import re
import threading

import pytest
import torch

import elche as hvd
from elche.errors import ConfigError, DuplicateNameError, OperationMismatchError

NAME = "the operation"


def all_fail(call, match, size):
    """`call()` raises the same mismatch on every rank, and afterwards operations of that name work."""
    with pytest.raises(OperationMismatchError, match=match) as caught:
        call()
    assert isinstance(caught.value, hvd.HorovodInternalError)
    texts = hvd.allgather_object(str(caught.value))
    assert len(set(texts)) == 1
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name=NAME).tolist() == [size, size]


def reductions_that_differ(odd):
    """By what differs, with the values of the other ranks and of the odd one: a call."""
    ones = torch.ones
    return {
        "allreduce tensor shapes [3]|[2]": lambda: hvd.allreduce(ones(2 + (not odd)), name=NAME),
        "allreduce tensor shapes [6]|[2, 3]": lambda: hvd.allreduce(
            ones(2, 3) if odd else ones(6), name=NAME
        ),
        "data types float32|float64": lambda: hvd.allreduce(
            ones(3, dtype=torch.float64 if odd else torch.float32), name=NAME
        ),
        "data types int32|bool": lambda: hvd.allgather(
            ones(3, dtype=torch.bool if odd else torch.int32), name=NAME
        ),
        "reduce operations Sum|Max": lambda: hvd.allreduce(
            ones(3), name=NAME, op=hvd.Max if odd else hvd.Sum
        ),
        "reduce operations Average|Min": lambda: hvd.reducescatter(
            ones(4), name=NAME, op=hvd.Min if odd else hvd.Average
        ),
        "prescale and/or postscale factors [2.0, 1.0]|[1.0, 1.0]": lambda: hvd.allreduce(
            ones(3), name=NAME, prescale_factor=1.0 if odd else 2.0
        ),
        "prescale and/or postscale factors [1.0, 1.0]|[1.0, 0.5]": lambda: hvd.allreduce(
            ones(3), name=NAME, postscale_factor=0.5 if odd else 1.0
        ),
    }


def exchanges_that_differ(odd, rank, size):
    ones = torch.ones
    return {
        "allgather tensor shapes [rows, 3]|[rows, 2]": lambda: hvd.allgather(
            ones(rank, 2 + (not odd)), name=NAME
        ),
        "allgather tensor shapes [rows]|[rows, 3]": lambda: hvd.allgather(
            ones(3, 3) if odd else ones(3), name=NAME
        ),
        "broadcast tensor shapes [3]|[4]": lambda: hvd.broadcast(ones(3 + odd), 0, name=NAME),
        "data types float32|int64": lambda: hvd.broadcast(
            ones(3, dtype=torch.int64 if odd else torch.float32), 0, name=NAME
        ),
        "broadcast root ranks 0|1": lambda: hvd.broadcast(ones(3), int(odd), name=NAME),
        "allgather root ranks 0|1": lambda: hvd.broadcast_object("x", int(odd), name=NAME),
        "alltoall tensor shapes [rows, 3]|[rows, 2]": lambda: hvd.alltoall(
            ones(size, 2 + (not odd)), name=NAME
        ),
        "data types uint8|int8": lambda: hvd.alltoall(
            ones(size, dtype=torch.int8 if odd else torch.uint8), name=NAME
        ),
        "reducescatter tensor shapes [5]|[4]": lambda: hvd.reducescatter(ones(4 + (not odd)), name=NAME),
        "operations allreduce|allgather": lambda: (hvd.allgather if odd else hvd.allreduce)(
            ones(3), name=NAME
        ),
        "numbers of tensors 2|1": lambda: hvd.grouped_allreduce([ones(3)] * (2 - odd), name=NAME),
        "allreduce tensor shapes [[3], [4]]|[[3], [3]]": lambda: hvd.grouped_allreduce(
            [ones(3), ones(4 - odd)], name=NAME
        ),
        "sparse tensor shapes [4, 3]|[5, 3]": lambda: hvd.sparse_allreduce_async(
            ones(4 + odd, 3)[:0].new_zeros(4 + odd, 3).to_sparse(), NAME, hvd.Sum
        )(),
    }


def different_calls_are_refused_everywhere(rank, size):
    if size == 1:
        return
    odd = rank == size - 1
    others, who = (
        f"rank{'s' if size > 2 else ''} {[*range(size - 1)] if size > 2 else 0}",
        f"rank {size - 1}",
    )

    def differ(what, one, other):
        return f"^Mismatched {what} of '{NAME}': {re.escape(f'{others}: {one}; {who}: {other}')}$"

    calls = reductions_that_differ(odd) | exchanges_that_differ(odd, rank, size)
    for text, call in calls.items():
        what, values = text.split(" ", 1) if text.startswith("operations") else _parted(text)
        all_fail(call, differ(what, *values.split("|")), size)


def _parted(text):
    """'data types a|b' -> 'data types', 'a|b'."""
    for what in ("tensor shapes", "data types", "reduce operations", "factors", "root ranks", "of tensors"):
        head, found, values = text.partition(f"{what} ")
        if found:
            return head + what, values
    raise AssertionError(text)


def unnamed_operations_of_different_kinds_are_told_apart(rank, size):
    if size == 1:
        return
    call = hvd.barrier if rank == 0 else lambda: hvd.allreduce(torch.ones(3))
    with pytest.raises(OperationMismatchError, match=r"^Mismatched operations of 'noname\.\d+\.\d+'"):
        call()
    assert hvd.allreduce(torch.ones(1)).tolist() == [1.0]


def what_one_rank_refuses_is_an_error_everywhere(rank, size):
    ones = torch.ones
    wrong = {
        rf"root_rank must be one of .*, got {size}": lambda bad: hvd.broadcast(
            ones(2), size if bad else 0, name=NAME
        ),
        "splits must have one entry for each of": lambda bad: hvd.alltoall(
            ones(size), [1] * (size + bad), name=NAME
        ),
        "sum of splits entries is greater than": lambda bad: hvd.alltoall(
            ones(size), [1 + bad] * size, name=NAME
        ),
        "splits must be at least 0": lambda bad: hvd.alltoall(
            ones(size), [-1 if bad else 0] * size, name=NAME
        ),
        "splits must be a one-dimensional tensor of integers": lambda bad: hvd.alltoall(
            ones(size), ones(size, dtype=torch.float32 if bad else torch.int64), name=NAME
        ),
        "data type must be one of uint8, .*, got torch.complex64": lambda bad: hvd.allreduce(
            ones(2, dtype=torch.complex64 if bad else torch.float32), name=NAME
        ),
        "bool tensors have no average": lambda bad: hvd.allreduce(
            ones(2, dtype=torch.bool if bad else torch.float32), name=NAME
        ),
        "Adasum takes floating point": lambda bad: hvd.allreduce(
            ones(2, dtype=torch.int64 if bad else torch.float32), op=hvd.Adasum, name=NAME
        ),
        "reducescatter has no Adasum": lambda bad: hvd.reducescatter(
            ones(2), op=hvd.Adasum if bad else hvd.Sum, name=NAME
        ),
        "allgather takes tensors of at least one dimension": lambda bad: hvd.allgather(
            torch.tensor(1.0) if bad else ones(1), name=NAME
        ),
        "must be finite, got inf": lambda bad: hvd.allreduce(
            ones(2), prescale_factor=float("inf") if bad else 1.0, name=NAME
        ),
        "takes a sparse tensor in COO layout": lambda bad: hvd.sparse_allreduce_async(
            ones(2, 2) if bad else ones(2, 2).to_sparse(), NAME, hvd.Sum
        )(),
    }
    for match, call in wrong.items():
        bad = rank == size - 1
        kind, text = (
            (ConfigError, match) if bad else (OperationMismatchError, f"rank {size - 1} refused .*{match}")
        )
        with pytest.raises(kind, match=text):
            call(bad)
        assert issubclass(kind, ValueError if bad else RuntimeError)
        assert hvd.allreduce(ones(2), op=hvd.Sum, name=NAME).tolist() == [size, size]


def refusals_without_a_name_keep_the_numbering(rank, size):
    ones, bad = torch.ones, rank == size - 1
    right, last = hvd.Sum, size if bad else 0
    lock = threading.Lock()  # pickle cannot write it
    calls = {
        "op must be elche": lambda: hvd.allreduce(ones(2), op="sum" if bad else right),
        "op must be elche.*": lambda: hvd.reducescatter(ones(size), op=3 if bad else right),
        "supersedes average": lambda: hvd.allreduce_(ones(2), average=False, op=right if bad else None),
        "factors must be numbers": lambda: hvd.allreduce(ones(2), prescale_factor="two" if bad else 1.0),
        r"splits must be integers, got \[1.9": lambda: hvd.alltoall(ones(8), [1.9 if bad else 1] * size),
        r"splits must be integers, got \[True": lambda: hvd.alltoall(ones(8), [True if bad else 1] * size),
        "splits must be integers, got 'x'": lambda: hvd.alltoall(ones(8), "x" if bad else [1] * size),
        "root_rank must be one of": lambda: hvd.broadcast_object("x", last),
        "lock cannot be pickled": lambda: hvd.allgather_object(lock if bad else 1),
        "lock cannot be pickled.*": lambda: hvd.broadcast_object(lock if bad else 1, size - 1),
        "takes tensors, got list": lambda: hvd.allgather([1.0] if bad else ones(1)),
    }
    for match, call in calls.items():
        with pytest.raises(ConfigError if bad else OperationMismatchError, match=match):
            call()
        assert hvd.allreduce(torch.tensor([rank]), op=hvd.Max).tolist() == [size - 1]


def wrong_on_all_ranks_is_an_error_on_all(rank, size):
    with pytest.raises(ValueError, match="root_rank must be one of"):
        hvd.broadcast(torch.ones(2), -1)
    with pytest.raises(ValueError, match="supersedes average"):
        hvd.allreduce(torch.ones(2), average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="op must be elche"):
        hvd.allreduce(torch.ones(2), op="sum")
    if size > 1:
        with pytest.raises(ValueError, match=f"must divide by {size} ranks, got {size + 1} rows"):
            hvd.alltoall(torch.ones(size + 1))
    assert hvd.allreduce(torch.ones(1)).tolist() == [1.0]


def a_name_in_use_is_refused_and_told_to_all(rank, size):
    if size == 1:
        return
    last = size - 1
    if rank != last:
        handle = hvd.allreduce_async(torch.ones(3), name=NAME)
        with pytest.raises(DuplicateNameError, match="is the name of an operation that has not ended"):
            hvd.allreduce_async(torch.ones(3), name=NAME)
    hvd.barrier()  # the last one has not submitted it yet
    if rank == last:
        handle = None
    if handle is not None:
        with pytest.raises(OperationMismatchError, match=r"^duplicate name: ranks? .* submitted .* again"):
            hvd.synchronize(handle)
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name=NAME).tolist() == [size, size]


def a_tensor_that_cannot_be_written_to_fails_alone(rank, size):
    odd = rank == size - 1
    target = torch.zeros(1).expand(4) if odd else torch.zeros(4)
    others = [hvd.allreduce_async_(torch.ones(2), op=hvd.Sum, name=f"beside {i}") for i in range(2)]
    handle = hvd.allreduce_async_(target, op=hvd.Sum, name=NAME)
    assert [hvd.synchronize(other).tolist() for other in others] == [[size, size]] * 2
    if odd:
        with pytest.raises(ConfigError, match=f"^allreduce '{NAME}': its result cannot be written"):
            hvd.synchronize(handle)
    else:
        assert hvd.synchronize(handle).tolist() == [0.0] * 4
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name=NAME).tolist() == [size, size]


LAWS = [
    different_calls_are_refused_everywhere,
    unnamed_operations_of_different_kinds_are_told_apart,
    what_one_rank_refuses_is_an_error_everywhere,
    refusals_without_a_name_keep_the_numbering,
    wrong_on_all_ranks_is_an_error_on_all,
    a_name_in_use_is_refused_and_told_to_all,
    a_tensor_that_cannot_be_written_to_fails_alone,
]
