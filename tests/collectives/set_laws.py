"""Process sets: added, nested, overlapping, removed; what holds on every rank."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

import elche as hvd
from elche import world as worlds
from elche.collectives import process_sets
from elche.errors import CommError, ConfigError, OperationMismatchError


def sets_have_operations_of_their_own(rank, size):
    if size == 1:
        return
    evens = hvd.add_process_set(hvd.ProcessSet(range(0, size, 2)))
    first = hvd.add_process_set([0]) if size > 2 else None  # nested
    low = hvd.add_process_set([1, 0]) if size > 2 else None  # overlapping
    members = [0, 2][: (size + 1) // 2]
    assert evens.ranks == members
    assert (evens.size(), evens.included()) == (len(members), rank in members)
    if rank in members:
        assert evens.rank() == members.index(rank)
        found = hvd.allreduce(torch.tensor([rank + 1.0]), op=hvd.Sum, process_set=evens)
        assert found.tolist() == [sum(members) + len(members)]
        assert hvd.allreduce(torch.tensor([float(rank)]), process_set=evens).tolist() == [len(members) - 1.0]
        assert hvd.allgather(torch.tensor([rank]), process_set=evens).tolist() == members
        assert hvd.broadcast(torch.tensor([rank]), members[-1], process_set=evens).tolist() == members[-1:]
        assert hvd.allgather_object(rank, process_set=evens) == members
        assert hvd.broadcast_object(rank, members[-1], process_set=evens) == members[-1]
        x = torch.ones(2, requires_grad=True)
        hvd.allreduce(x, op=hvd.Sum, process_set=evens).sum().backward()
        assert x.grad.tolist() == [len(members)] * 2
        hvd.barrier(process_set=evens)
    else:
        with pytest.raises(ConfigError, match=rf"rank {rank} is not in ProcessSet\(ranks=\{members}"):
            hvd.allreduce(torch.ones(1), process_set=evens)
    if first is not None and low is not None:
        if rank < 2:
            handle = hvd.allreduce_async(torch.ones(1), op=hvd.Sum, name="x", process_set=low)
            if rank == 0:
                assert hvd.allreduce(torch.ones(1), name="x", op=hvd.Sum, process_set=first).tolist() == [1.0]
            assert hvd.synchronize(handle).tolist() == [2.0]
        assert hvd.remove_process_set(first) is True
        assert hvd.remove_process_set(low) is True
        assert hvd.remove_process_set(low) is False
        assert low.process_set_id is None
    assert hvd.remove_process_set(evens) is True
    assert hvd.remove_process_set(hvd.global_process_set) is False
    with pytest.raises(ConfigError, match="is not known"):
        hvd.allreduce(torch.ones(1), process_set=evens)
    again = hvd.add_process_set(evens)
    if rank in members:
        assert hvd.allgather(torch.tensor([rank]), process_set=again).tolist() == members
    assert hvd.remove_process_set(again) is True
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist() == [size]


def wrong_sets_are_refused_everywhere(rank, size):
    with pytest.raises(ConfigError, match="with the same ranks exists already"):
        hvd.add_process_set(range(size))
    with pytest.raises(ConfigError, match=rf"different ranks of 0..{size - 1}, at least one, got \[\]"):
        hvd.add_process_set([])
    with pytest.raises(ConfigError, match=rf"got \[0, {size}\]"):
        hvd.add_process_set([0, size])
    if size > 1:
        with pytest.raises(OperationMismatchError, match=r"^Mismatched ranks of 'noname"):
            hvd.add_process_set([int(rank == 1)])
        with pytest.raises(ConfigError if rank == 0 else OperationMismatchError, match=r"root_rank|refused"):
            hvd.broadcast(torch.ones(1), size if rank == 0 else 0, process_set=hvd.global_process_set)
    assert hvd.global_process_set.size() == size
    assert hvd.global_process_set.rank() == rank
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist() == [size]


def a_removed_set_closes_its_communicator(rank, size):
    if size == 1:
        return
    first = hvd.add_process_set([0])
    comm = process_sets.current().channel(first).connect() if rank == 0 else None
    assert hvd.remove_process_set(first) is True  # before any operation
    if comm is not None:
        with pytest.raises(CommError, match="it was closed"):
            comm.agree(True)


def an_mpi_without_threads_is_refused_by_name(rank, size):
    if worlds.current().backend == "mpi":
        with (
            mock.patch("elche.collectives.process_sets.has_threads", return_value=False),
            pytest.raises(hvd.HorovodInternalError, match="operations need an MPI with MPI_THREAD_MULTIPLE"),
        ):
            process_sets.Operations(worlds.current())


def the_launch_is_described(rank, size):
    assert hvd.is_homogeneous() is True
    assert hvd.mpi_built() is True
    assert hvd.mpi_threads_supported() is hvd.mpi_enabled()
    assert (hvd.gloo_built(), hvd.gloo_enabled(), hvd.ddl_built(), hvd.ccl_built()) == (False,) * 4
    assert hvd.cuda_built() is (torch.version.cuda is not None)
    assert hvd.nccl_built() == 0 or torch.cuda.is_available()


LAWS = [
    sets_have_operations_of_their_own,
    wrong_sets_are_refused_everywhere,
    a_removed_set_closes_its_communicator,
    an_mpi_without_threads_is_refused_by_name,
    the_launch_is_described,
]
