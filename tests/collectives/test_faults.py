"""Ranks that do not come, leave or die: warnings, errors that name them, and never a hang."""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from contextvars import copy_context

import pytest
import torch

import elche as hvd
from elche import world
from elche.collectives import channel, process_sets
from elche.collectives.rounds import exchange
from elche.comm import memory
from elche.comm.memory_rendezvous import run_elastic
from elche.errors import NotInitializedError


def ranks(n, script):
    def one(comm):
        hvd.init(comm)
        try:
            return script(comm.rank)
        finally:
            hvd.shutdown()

    return memory.run(n, one, timeout_seconds=30)


@pytest.fixture
def tight(monkeypatch):
    monkeypatch.setenv("ELCHE_STALL_SECONDS", "0.4")


def test_a_rank_that_comes_to_no_operation_is_named(tight, capfd):
    failed = threading.Event()

    def script(rank):
        if rank == 2:
            assert failed.wait(20)
            return
        handle = hvd.allreduce_async(torch.ones(2), name="gradient")
        with pytest.raises(hvd.HorovodInternalError, match=r"ranks \[2\] have not come") as caught:
            hvd.synchronize(handle)
        assert str(caught.value).startswith("allreduce 'gradient' cannot end: all_gather ")
        with pytest.raises(hvd.HorovodInternalError, match="not possible any more"):
            hvd.allreduce(torch.ones(2))
        failed.set()

    ranks(3, script)
    said = capfd.readouterr().err
    assert re.search(r"rank [01] of all ranks waits for ranks \[2\] in gradient, for more than 0.2 s", said)


def test_a_rank_that_comes_to_other_operations_is_named_and_the_job_goes_on(tight, capfd):
    def script(rank):
        if rank != 1:
            with pytest.raises(
                hvd.HorovodInternalError, match=r"'lonely' waited too long for rank 1; ranks \[0"
            ):
                hvd.allreduce(torch.ones(2), name="lonely")
        else:
            with pytest.raises(hvd.HorovodInternalError, match=r"'other' waited too long for ranks \[0, 2\]"):
                hvd.allreduce(torch.ones(2), name="other")
        return hvd.allreduce(torch.ones(1), op=hvd.Sum, name="after").tolist()

    assert ranks(3, script) == [[3.0]] * 3
    assert "waits for ranks [1] in lonely" in capfd.readouterr().err


def test_a_rank_that_shuts_down_ends_what_waits_for_it():
    def script(rank):
        if rank == 0:
            assert hvd.allreduce(torch.ones(1), name="first").tolist() == [1.0]
            return
        hvd.allreduce(torch.ones(1), name="first")
        with pytest.raises(hvd.HorovodInternalError, match=r"ranks \[0\] of all ranks have shut down"):
            hvd.allreduce(torch.ones(1), name="second")

    ranks(3, script)


def test_who_has_joined_waits_as_long_as_others_work(tight, capfd, monkeypatch):
    expired = []

    def told(comm, news):
        expired.extend(news.expired)
        return exchange(comm, news)

    monkeypatch.setattr(channel, "exchange", told)

    def script(rank):
        until = time.monotonic() + 0.6  # longer than the deadline
        while rank == 1 and time.monotonic() < until:
            hvd.allreduce(torch.ones(1))
        return hvd.join()

    assert ranks(2, script) == [1, 1]
    assert expired == []
    assert "join" not in capfd.readouterr().err


def test_what_is_outstanding_at_shutdown_fails():
    def script(rank):
        handle = hvd.allreduce_async(torch.ones(1), name=f"only here {rank}")
        hvd.shutdown()
        with pytest.raises(hvd.HorovodInternalError, match=r"shut down|shutdown"):
            hvd.synchronize(handle)
        with pytest.raises(NotInitializedError):
            hvd.allreduce(torch.ones(1))

    ranks(2, script)


def test_what_waits_for_a_refusal_to_be_told_fails_at_shutdown_too():
    def script(rank):
        hvd.barrier()
        if rank == 1:
            return
        with pytest.raises(ValueError, match="root_rank must be one of"):
            hvd.broadcast_async(torch.ones(1), 7, name="x")
        handle = hvd.allreduce_async(torch.ones(1), name="x")
        with pytest.raises(hvd.HorovodInternalError, match="allreduce 'x' cannot end"):
            hvd.synchronize(handle)

    ranks(2, script)


def test_threads_that_begin_together_have_the_same_operations(monkeypatch):
    both, made = threading.Barrier(2), []

    class Met(process_sets.Operations):
        def __init__(self, world):
            with suppress(threading.BrokenBarrierError):
                both.wait(0.2)  # in vain, if the other thread waits for this one
            super().__init__(world)

    monkeypatch.setattr(process_sets, "Operations", Met)

    def script(_):
        threads = [
            threading.Thread(target=copy_context().run, args=(lambda: made.append(process_sets.current()),))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)

    ranks(1, script)
    assert len(made) == 2
    assert made[0] is made[1]


def test_who_has_nothing_outstanding_costs_nothing():
    def script(rank):
        hvd.barrier()
        (mine,) = [t for t in threading.enumerate() if t.name == "elche-collectives"] if rank == 0 else [None]
        begun = time.process_time()
        time.sleep(0.2)
        return time.process_time() - begun if mine else 0.0

    assert ranks(1, script)[0] < 0.02


def test_a_lost_rank_fails_what_is_outstanding_on_the_others():
    outstanding, worlds = threading.Barrier(3), []

    def live(rendezvous):
        hvd.init(rendezvous)
        worlds.append(world.current())
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist() == [3.0]
        if rendezvous.process == 1:
            outstanding.wait(20)
            rendezvous.machine.kill(1)
            rendezvous.gone()
        handle = hvd.allreduce_async(torch.ones(1), name="x")
        outstanding.wait(20)
        with pytest.raises(hvd.HorovodInternalError, match="allreduce 'x' cannot end"):
            hvd.synchronize(handle)
        return "went on"

    outcomes = run_elastic(3, live, timeout_seconds=30)
    for one in worlds:  # a process that ends takes its threads along
        one.operations.close()
        one.group.close()
    assert [outcome.result for outcome in outcomes] == ["went on", None, "went on"]
