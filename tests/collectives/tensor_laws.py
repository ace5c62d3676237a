"""Which tensors the operations take, and what can be done with those that they return."""

from __future__ import annotations

import torch

import elche as hvd


def tensors_of_inference_mode_are_written_in_place(rank, size):
    with torch.inference_mode():
        x = torch.full((3,), float(rank))
    y = torch.ones(2)
    version = y._version
    hvd.grouped_allreduce_([x, y], op=hvd.Sum)
    assert x.tolist() == [sum(range(size))] * 3
    assert y.tolist() == [size, size]
    assert y._version > version  # so that autograd knows
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist() == [size]


def generators_of_tensors_are_taken(rank, size):
    x, y = torch.ones(2), torch.full((3,), 2.0)
    found = hvd.grouped_allreduce_((t for t in (x, y)), op=hvd.Sum)
    assert found[0] is x
    assert (x.tolist(), y.tolist()) == ([size] * 2, [2.0 * size] * 3)
    ones = hvd.grouped_allreduce((torch.ones(n) for n in (1, 2)), op=hvd.Sum)
    assert [one.tolist() for one in ones] == [[size], [size, size]]
    rows = hvd.grouped_reducescatter((torch.ones(size) for _ in range(2)), op=hvd.Sum)
    assert [row.tolist() for row in rows] == [[size], [size]]
    gathered = hvd.grouped_allgather(torch.tensor([rank]) for _ in range(2))
    assert [one.tolist() for one in gathered] == [[*range(size)]] * 2


def results_may_be_changed_in_place(rank, size):
    calls = {
        "allreduce": (lambda x: hvd.allreduce(x, op=hvd.Sum), 2.0 * size),
        "grouped": (lambda x: hvd.grouped_allreduce([x, x * 1], op=hvd.Sum)[0], 2.0 * size),
        "allgather": (hvd.allgather, 2.0 * size),
        "broadcast": (
            lambda x: hvd.broadcast(x, rank if size == 1 else 1),
            2.0 * size * (rank == (size > 1)),
        ),
        "alltoall": (hvd.alltoall, 2.0),
        "alltoall with splits": (lambda x: hvd.alltoall(x, [1] * size)[0], 2.0),
        "reducescatter": (lambda x: hvd.reducescatter(x, op=hvd.Sum), 2.0),
    }
    for what, (call, expected) in calls.items():
        x = torch.ones(size, requires_grad=True)
        call(x).mul_(2).sum().backward()
        assert x.grad.tolist() == [expected] * size, what


def results_hold_no_memory_of_others(rank, size):
    handles = [hvd.allreduce_async(torch.ones(4), op=hvd.Sum, name=f"small {i}") for i in range(50)]
    results = [hvd.synchronize(handle) for handle in handles]
    results += hvd.grouped_allreduce([torch.ones(4), torch.ones(9)], op=hvd.Sum)
    assert [result.untyped_storage().nbytes() for result in results] == [16] * 51 + [36]
    assert {value for result in results for value in result.tolist()} == {size}


def a_tensor_may_be_called_join(rank, size):
    handle = hvd.allreduce_async(torch.ones(2), op=hvd.Sum, name="join")
    assert hvd.join() in range(size)
    assert hvd.synchronize(handle).tolist() == [size, size]


LAWS = [
    tensors_of_inference_mode_are_written_in_place,
    generators_of_tensors_are_taken,
    results_may_be_changed_in_place,
    results_hold_no_memory_of_others,
    a_tensor_may_be_called_join,
]
