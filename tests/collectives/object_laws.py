"""Objects, parameters, optimizer state, gradients and joining: what holds on every rank."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import elche as hvd
from elche.errors import ConfigError, MismatchError, OperationMismatchError

OPTIMIZERS = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}
SPARSE_ONLY, MATRICES_ONLY = "SparseAdam", "Muon"


def objects_travel(rank, size):
    for root in range(size):
        thing = {"rank": rank, "tensor": torch.arange(rank + 1), "text": "x" * 5000 * rank}
        found = hvd.broadcast_object(thing, root)
        assert found["rank"] == root
        assert found["tensor"].tolist() == list(range(root + 1))
        assert len(found["text"]) == 5000 * root
    assert hvd.broadcast_object(None) is None
    gathered = hvd.allgather_object([rank] * rank, name="objects")
    assert gathered == [[r] * r for r in range(size)]


def parameters_become_those_of_the_root(rank, size):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    for root in range(size):
        for tensor in model.state_dict().values():
            tensor.fill_(rank + 10 * root)
        hvd.broadcast_parameters(model.state_dict(), root_rank=root)
        assert {float(value) for t in model.state_dict().values() for value in t.reshape(-1)} == {11.0 * root}
    with torch.no_grad():
        model[0].weight.fill_(rank + 0.5)
    hvd.broadcast_parameters(model.named_parameters(), root_rank=size - 1)
    assert model[0].weight.tolist() == [[size - 0.5] * 3] * 4
    bare = [torch.full((2,), float(rank)), torch.full((3,), rank + 0.5)]
    hvd.broadcast_parameters(bare, root_rank=size - 1)
    assert [tensor.tolist() for tensor in bare] == [[size - 1.0] * 2, [size - 0.5] * 3]


def parameters_that_are_none_leave_nothing_under_way(rank, size):
    odd = rank == size - 1
    for _ in range(2):
        x, y = torch.full((2,), float(rank)), torch.full((3,), float(rank))
        entries = [("x", x), ("wrong", 3 if odd else torch.ones(1)), ("y", y)]
        with pytest.raises(ConfigError if odd else OperationMismatchError, match="takes tensors, got int"):
            hvd.broadcast_parameters(entries, root_rank=size - 1)
        assert (x.tolist(), y.tolist()) == ([size - 1.0] * 2, [size - 1.0] * 3)


def trained(kind, rank, steps):
    weight = nn.Parameter(torch.arange(6.0).reshape(2, 3) + rank)
    optimizer = kind([{"params": [weight]}], lr=0.125 * (rank + 1))
    for step in range(steps):

        def closure(step=step):
            optimizer.zero_grad()
            loss = (weight * (step + rank + 1.5)).square().sum()
            loss.backward()
            if kind.__name__ == SPARSE_ONLY:
                weight.grad = weight.grad.to_sparse()
            return loss

        closure() if kind.__name__ != "LBFGS" else None
        optimizer.step(closure) if kind.__name__ == "LBFGS" else optimizer.step()
    return optimizer


def optimizer_state_of_every_kind_becomes_that_of_the_root(rank, size):
    assert {"SGD", "Adam", "AdamW", "LBFGS", "SparseAdam", "Adafactor"} <= OPTIMIZERS.keys()
    for kind in OPTIMIZERS.values():
        root = size - 1
        optimizer = trained(kind, rank, steps=2 if rank == root else 0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=root)
        expected = trained(kind, root, steps=2).state_dict()
        found = optimizer.state_dict()
        assert found["param_groups"] == expected["param_groups"]
        torch.testing.assert_close(found["state"], expected["state"], rtol=0, atol=0)


def optimizers_that_do_not_fit_are_named(rank, size):
    if size == 1:
        return
    weights = [nn.Parameter(torch.ones(3)) for _ in range(1 + (rank == 1))]
    with pytest.raises(
        MismatchError, match=r"optimizer state of rank 0 does not fit: rank 1: loaded state dict"
    ):
        hvd.broadcast_optimizer_state(torch.optim.SGD(weights, lr=0.1), root_rank=0)
    assert hvd.allreduce(torch.ones(1)).tolist() == [1.0]


def whatever_an_optimizer_raises_is_told_to_all(rank, size):
    if size == 1:
        return

    class Stubborn(torch.optim.SGD):
        def load_state_dict(self, state_dict):
            raise AttributeError("it takes none")

    kind = Stubborn if rank == 1 else torch.optim.SGD
    optimizer = kind([nn.Parameter(torch.ones(3))], lr=0.1)
    with pytest.raises(MismatchError, match=r"of rank 0 does not fit: rank 1: it takes none$"):
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert hvd.allreduce(torch.ones(1)).tolist() == [1.0]


def gradients_flow_through_reductions(rank, size):
    rank_sum = {1: 1.0, 2: 3.0, 3: 6.0, 4: 10.0}[size]
    for op, expected in ((hvd.Sum, rank_sum), (hvd.Average, rank_sum / size)):
        x = torch.ones(3, requires_grad=True)
        (hvd.allreduce(x, op=op, prescale_factor=2.0) * (rank + 1)).sum().backward()
        assert x.grad.tolist() == [2.0 * expected] * 3
    x = torch.tensor([float(rank), 5.0], requires_grad=True)
    (hvd.allreduce(x, op=hvd.Max) * (rank + 1)).sum().backward()
    assert x.grad.tolist() == [rank_sum * (rank == size - 1), rank_sum / size]
    x, y = (torch.ones(2, requires_grad=True) for _ in range(2))
    a, b = hvd.grouped_allreduce([x, y], op=hvd.Sum)
    (a.sum() + 2 * b.sum()).backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([size] * 2, [2.0 * size] * 2)
    x = torch.ones(5, 2, requires_grad=True)
    rows = {1: [5], 2: [3, 2], 3: [2, 2, 1], 4: [2, 1, 1, 1]}[size]
    (hvd.reducescatter(x, op=hvd.Sum) * (rank + 1)).sum().backward()
    assert x.grad[:, 0].tolist() == [r + 1.0 for r in range(size) for _ in range(rows[r])]
    x = torch.ones(5, 2, requires_grad=True)
    (hvd.reducescatter(x) * (rank + 1) * size).sum().backward()
    assert x.grad[:, 1].tolist() == [r + 1.0 for r in range(size) for _ in range(rows[r])]
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(ConfigError, match=r"no gradient flows through allreduce .* with op Product"):
        hvd.allreduce(x, op=hvd.Product).sum().backward()


def gradients_flow_through_exchanges(rank, size):
    rank_sum = {1: 1.0, 2: 3.0, 3: 6.0, 4: 10.0}[size]
    x = torch.ones(rank, 2, requires_grad=True)
    (hvd.allgather(x) * (rank + 1)).sum().backward()
    assert x.grad.tolist() == [[rank_sum] * 2] * rank
    x, y = torch.ones(2, requires_grad=True), torch.ones(rank + 1, requires_grad=True)
    (hvd.grouped_allgather([x, y])[0] * torch.arange(2.0 * size)).sum().backward()
    assert x.grad.tolist() == [2.0 * rank * size, (2.0 * rank + 1) * size]
    for root in range(size):
        x = torch.ones(3, requires_grad=True)
        (hvd.broadcast(x, root) * (rank + 1)).sum().backward()
        assert x.grad.tolist() == [rank_sum * (rank == root)] * 3
    x = torch.ones(2 * size + 1, requires_grad=True)  # the last row is not sent
    found, _ = hvd.alltoall(x, [2] * size)
    (found * (rank + 1)).sum().backward()
    assert x.grad.tolist() == [r + 1.0 for r in range(size) for _ in range(2)] + [0.0]
    x = torch.ones(size, requires_grad=True)
    hvd.alltoall(x).sum().backward()
    assert x.grad.tolist() == [1.0] * size


def who_has_joined_adds_nothing(rank, size):
    for first in range(size):
        if rank != first:
            others = [r for r in range(size) if r != first]
            ones = torch.ones(3)
            assert hvd.allreduce(ones, op=hvd.Sum).tolist() == [size - 1.0] * 3
            assert hvd.allreduce(ones * size).tolist() == [size - 1.0] * 3
            assert hvd.allreduce(ones * (rank + 1), op=hvd.Min).tolist() == [min(others) + 1.0] * 3
            assert hvd.allreduce(ones * 2, op=hvd.Product).tolist() == [2.0 ** (size - 1)] * 3
            assert hvd.allreduce(ones.bfloat16(), op=hvd.Sum).tolist() == [size - 1.0] * 3
            assert hvd.allreduce(ones, op=hvd.Adasum).tolist() == [1.0] * 3
            assert hvd.allgather(torch.full((rank,), rank)).tolist() == [r for r in others for _ in range(r)]
            assert hvd.broadcast(torch.tensor([rank]), others[0]).tolist() == [others[0]]
            rows, received = hvd.alltoall(torch.full((size,), rank), [1] * size)
            assert rows.tolist() == others
            assert received.tolist() == [int(r != first) for r in range(size)]
            assert hvd.reducescatter(torch.ones(size), op=hvd.Sum).tolist() == [size - 1.0]
            hvd.barrier()
            assert hvd.allgather_object(rank) == others if size == 1 else True
            handles = [hvd.allreduce_async(torch.full((n,), 1.0), op=hvd.Sum) for n in range(9)]
            for n, handle in enumerate(handles):
                assert hvd.synchronize(handle).tolist() == [size - 1.0] * n
            with pytest.raises(OperationMismatchError, match=f"root rank {first} of broadcast .* has joined"):
                hvd.broadcast(torch.ones(2), first)
        last = hvd.join()
        assert (last == first) is (size == 1)
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist() == [size]


LAWS = [
    objects_travel,
    parameters_become_those_of_the_root,
    parameters_that_are_none_leave_nothing_under_way,
    optimizer_state_of_every_kind_becomes_that_of_the_root,
    optimizers_that_do_not_fit_are_named,
    whatever_an_optimizer_raises_is_told_to_all,
    gradients_flow_through_reductions,
    gradients_flow_through_exchanges,
    who_has_joined_adds_nothing,
]
