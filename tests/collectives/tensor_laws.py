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


LAWS = [tensors_of_inference_mode_are_written_in_place, generators_of_tensors_are_taken]
