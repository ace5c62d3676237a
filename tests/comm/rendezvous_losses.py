"""The laws of `Rendezvous` when a process ends: each holds for any victim, at two processes or more.

The victim returns from the law at the moment when it is to end; whoever runs the law ends it then.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import numpy as np
import pytest
from rendezvous_laws import VERBS, SeenError, Watch, connect, everyone, others, processes_of, receive, until

from elche.comm.base import Comm, Rendezvous
from elche.errors import CommError


def an_end_fails_the_connect_that_waits(rendezvous: Rendezvous, victim: int) -> None:
    survivors = others(rendezvous, victim)
    connect(rendezvous, everyone(rendezvous), "end, all")
    if rendezvous.process == victim:
        receive(rendezvous, len(survivors))
        return
    rendezvous.send(victim, b"I wait")
    begun = time.monotonic()
    with pytest.raises(CommError):
        connect(rendezvous, everyone(rendezvous), "end")
    assert time.monotonic() - begun < 2.0
    assert processes_of(connect(rendezvous, survivors, "end, survivors"), rendezvous) == survivors


def connect_with_who_has_ended_fails_at_once(rendezvous: Rendezvous, victim: int) -> None:
    survivors = others(rendezvous, victim)
    connect(rendezvous, everyone(rendezvous), "ended, all")
    if rendezvous.process == victim:
        return
    until(lambda: victim in rendezvous.gone(), seconds=2.0)
    for number, members in enumerate((everyone(rendezvous), [rendezvous.process, victim])):
        begun = time.monotonic()
        with pytest.raises(CommError):
            connect(rendezvous, members, f"ended {number}, {members}")
        assert time.monotonic() - begun < 1.0
    assert processes_of(connect(rendezvous, survivors, "ended, survivors"), rendezvous) == survivors


def speak(verb: Callable[[Comm], object], comm: Comm) -> None:
    verb(comm)
    comm.agree(True)  # a broadcast from somebody else need not notice


def verbs_fail_after_an_end(rendezvous: Rendezvous, victim: int) -> None:
    survivors = others(rendezvous, victim)
    comms = {name: connect(rendezvous, everyone(rendezvous), f"loss, {name}") for name in VERBS}
    barrier = connect(rendezvous, survivors, "loss, survivors") if rendezvous.process != victim else None
    if barrier is None:
        receive(rendezvous, len(survivors))
        return
    rendezvous.send(victim, b"I wait")
    for name, comm in comms.items():  # the first waits for one that ends, the others come later
        begun = time.monotonic()
        with pytest.raises(CommError):
            speak(VERBS[name], comm)
        assert time.monotonic() - begun < 2.0
        comm.revoke()
        with pytest.raises(CommError):
            comm.agree(True)
    assert processes_of(barrier, rendezvous) == survivors


def sum_for_ever(comm: Comm, send: np.ndarray, recv: np.ndarray, total: float) -> None:
    while True:
        comm.all_reduce([send], [recv])
        assert (recv == total).all()


def a_sum_among_survivors_is_right(rendezvous: Rendezvous, victim: int) -> None:
    survivors = others(rendezvous, victim)
    comm = connect(rendezvous, everyone(rendezvous), "midst")
    send, recv = np.full(400_001, rendezvous.process + 1.0), np.zeros(400_001)
    if rendezvous.process == victim:
        comm.watch = Watch(last=3)
        for process in survivors:
            rendezvous.send(process, b"I begin")
        with contextlib.suppress(SeenError):  # else it has ended, and the next one finds nobody
            comm.all_reduce([send], [recv])
        return
    receive(rendezvous, 1)
    begun = time.monotonic()
    with pytest.raises(CommError):
        sum_for_ever(comm, send, recv, sum(range(rendezvous.num_processes + 1)))
    assert time.monotonic() - begun < 2.0
    comm.revoke()
    after = connect(rendezvous, survivors, "midst, survivors")
    after.all_reduce([send], [recv])
    assert (recv == sum(process + 1 for process in survivors)).all()
    recv[:] = 0
    for _ in range(20):
        assert after.agree(True)
        assert not recv.any()


def messages_go_on_among_the_living(rendezvous: Rendezvous, victim: int) -> None:
    survivors = others(rendezvous, victim)
    everybody = connect(rendezvous, everyone(rendezvous), "post, all")
    rendezvous.send(victim, b"farewell")
    assert everybody.agree(True)
    if rendezvous.process == victim:
        return
    for number in range(100):  # some before the end is known, some after
        for process in everyone(rendezvous):
            rendezvous.send(process, bytes([number]))
        if number == 50:
            until(lambda: victim in rendezvous.gone(), seconds=2.0)
    assert receive(rendezvous, 100 * len(survivors)) == {
        process: [bytes([number]) for number in range(100)] for process in survivors
    }
    barrier = connect(rendezvous, survivors, "post, survivors")
    assert rendezvous.propose("post", "still") == "still"
    assert barrier.agree(True)


def gone_names_the_ended_and_no_other(rendezvous: Rendezvous, victim: int) -> None:
    survivors = others(rendezvous, victim)
    everybody = connect(rendezvous, everyone(rendezvous), "gone, all")
    assert rendezvous.gone() == frozenset()
    assert everybody.agree(True)
    if rendezvous.process == victim:
        return
    until(rendezvous.gone, seconds=2.0)
    barrier = connect(rendezvous, survivors, "gone, survivors")
    for _ in range(100):
        assert rendezvous.gone() == {victim}
        assert barrier.agree(True)


LOSSES = {
    law.__name__: law
    for law in (
        an_end_fails_the_connect_that_waits,
        connect_with_who_has_ended_fails_at_once,
        verbs_fail_after_an_end,
        a_sum_among_survivors_is_right,
        messages_go_on_among_the_living,
        gone_names_the_ended_and_no_other,
    )
}
