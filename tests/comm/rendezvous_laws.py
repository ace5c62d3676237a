"""The laws of `Rendezvous`: each function holds on every process of every backend, at two or more.

All processes live on; where one ends, see rendezvous_losses.py. Every law begins and ends with everybody, so
that none meets what is left of the one before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from elche.comm.base import Comm, Rendezvous, all_gather_bytes
from elche.errors import CommError, ConfigError, DeadlineError

AMPLE_SECONDS = 20.0
VERBS: dict[str, Callable[[Comm], object]] = {
    "all_gather": lambda comm: comm.all_gather(np.zeros(5001)),
    "all_reduce": lambda comm: comm.all_reduce([np.zeros(5001)], [np.ones(5001)]),
    "broadcast": lambda comm: comm.broadcast([np.zeros(5001)], root=comm.size - 1),
    "agree": lambda comm: comm.agree(True),
}


class SeenError(Exception):
    """What a watch raises."""


class Watch:
    """Counts its calls, and raises at the last one."""

    def __init__(self, last: float = float("inf")) -> None:
        self.num_calls, self.last = 0, last

    def __call__(self) -> None:
        self.num_calls += 1
        if self.num_calls >= self.last:
            raise SeenError


def everyone(rendezvous: Rendezvous) -> list[int]:
    return list(range(rendezvous.num_processes))


def others(rendezvous: Rendezvous, left_out: int) -> list[int]:
    return [process for process in everyone(rendezvous) if process != left_out]


def connect(rendezvous: Rendezvous, processes: Sequence[int], name: str) -> Comm:
    return rendezvous.connect(processes, name, deadline_seconds=AMPLE_SECONDS)


def processes_of(comm: Comm, rendezvous: Rendezvous) -> list[int]:
    return comm.all_gather(np.array(rendezvous.process)).tolist()


def until(condition: Callable[[], object], seconds: float = AMPLE_SECONDS) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"not so within {seconds} s"
        time.sleep(1e-3)


def receive(rendezvous: Rendezvous, count: int) -> dict[int, list[bytes]]:
    """Return the next `count` messages by sender, and make sure that they are no more."""
    heard: list[tuple[int, bytes]] = []
    until(lambda: heard.extend(rendezvous.receive()) or len(heard) >= count)
    assert len(heard) == count
    by_sender: dict[int, list[bytes]] = {}
    for sender, message in heard:
        by_sender.setdefault(sender, []).append(message)
    return by_sender


def connect_numbers_the_ranks_in_the_given_order(rendezvous: Rendezvous) -> None:
    forth, back = everyone(rendezvous), everyone(rendezvous)[::-1]
    for name, order in (("forth", forth), ("back", back), ("forth again", forth)):
        comm = connect(rendezvous, order, name)
        assert (comm.rank, comm.size) == (order.index(rendezvous.process), len(order))
        assert processes_of(comm, rendezvous) == order
        assert all_gather_bytes(comm, bytes(comm.rank)) == [bytes(rank) for rank in range(comm.size)]


def connect_of_some_is_no_matter_of_the_others(rendezvous: Rendezvous) -> None:
    everybody = connect(rendezvous, everyone(rendezvous), "some, all")
    for left_out in (0, rendezvous.num_processes - 1):
        members = others(rendezvous, left_out)
        if rendezvous.process != left_out:
            assert processes_of(connect(rendezvous, members, f"without {left_out}"), rendezvous) == members
        assert everybody.agree(True)
    alone = connect(rendezvous, [rendezvous.process], f"alone {rendezvous.process}")
    assert processes_of(alone, rendezvous) == [rendezvous.process]
    assert everybody.agree(True)


def communicators_do_not_meet(rendezvous: Rendezvous) -> None:
    connect(rendezvous, everyone(rendezvous), "apart, all")
    if rendezvous.process != 0:  # so that processes have made different numbers of them
        extra = connect(rendezvous, others(rendezvous, 0), "extra")
    one = connect(rendezvous, everyone(rendezvous), "one")
    two = connect(rendezvous, everyone(rendezvous), "two")
    for _ in range(20):
        assert one.all_gather(np.array([1, rendezvous.process])).sum(axis=0)[0] == one.size
        assert two.all_gather(np.array([2, rendezvous.process])).sum(axis=0)[0] == 2 * two.size
    if rendezvous.process == one.size - 1:
        one.revoke()
    with pytest.raises(CommError):
        one.agree(True)
    assert two.agree(True)
    assert rendezvous.process == 0 or extra.agree(True)
    assert two.agree(True)


def a_name_connects_once(rendezvous: Rendezvous) -> None:
    comm = connect(rendezvous, everyone(rendezvous), "once")
    with pytest.raises(ConfigError, match="once"):
        connect(rendezvous, everyone(rendezvous), "once")
    assert comm.agree(True)


def who_does_not_come_is_a_deadline_error(rendezvous: Rendezvous) -> None:
    everybody = connect(rendezvous, everyone(rendezvous), "absent, all")
    if rendezvous.process != 0:
        begun = time.monotonic()
        with pytest.raises(DeadlineError):
            rendezvous.connect(everyone(rendezvous), "absent", deadline_seconds=0.2)
        assert 0.2 <= time.monotonic() - begun < 2.0
        members = others(rendezvous, 0)
        assert processes_of(connect(rendezvous, members, "absent, others"), rendezvous) == members
    assert everybody.agree(True)
    assert connect(rendezvous, everyone(rendezvous), "absent, all again").agree(True)


def connect_is_watched(rendezvous: Rendezvous) -> None:
    everybody = connect(rendezvous, everyone(rendezvous), "watched, all")
    if rendezvous.process != 0:
        patient, hasty = Watch(), Watch(last=5)
        with pytest.raises(DeadlineError):
            rendezvous.connect(everyone(rendezvous), "patient", deadline_seconds=0.3, watch=patient)
        assert 10 <= patient.num_calls <= 310
        with pytest.raises(SeenError):
            rendezvous.connect(everyone(rendezvous), "hasty", deadline_seconds=AMPLE_SECONDS, watch=hasty)
        assert hasty.num_calls == 5
    assert everybody.agree(True)
    calm = rendezvous.connect(everyone(rendezvous), "calm", deadline_seconds=AMPLE_SECONDS, watch=Watch())
    assert calm.agree(True)


def verbs_are_watched(rendezvous: Rendezvous) -> None:
    everybody = connect(rendezvous, everyone(rendezvous), "verbs, all")
    for name, verb in VERBS.items():
        comm = connect(rendezvous, everyone(rendezvous), f"verbs, {name}")
        comm.watch = Watch(last=5)
        if rendezvous.process != comm.size - 1:  # the root of the broadcast
            with pytest.raises(SeenError):
                verb(comm)
            assert comm.watch.num_calls == 5
            with pytest.raises(CommError, match="cannot agree"):
                comm.agree(True)
        assert everybody.agree(True)


def a_watch_is_called_about_every_millisecond(rendezvous: Rendezvous) -> None:
    everybody = connect(rendezvous, everyone(rendezvous), "ticks, all")
    comm = connect(rendezvous, everyone(rendezvous), "ticks")
    comm.watch = Watch()
    if rendezvous.process != 0:
        with pytest.raises(DeadlineError):
            comm.agree(True, deadline_seconds=0.3)
        assert 10 <= comm.watch.num_calls <= 310
    assert everybody.agree(True)


def revoke_wakes_those_that_wait(rendezvous: Rendezvous) -> None:
    everybody = connect(rendezvous, everyone(rendezvous), "revoke, all")
    for name, verb in VERBS.items():
        comm = connect(rendezvous, everyone(rendezvous), f"revoke, {name}")
        if rendezvous.process == comm.size - 1:
            receive(rendezvous, comm.size - 1)
            comm.revoke()
            comm.revoke()
        else:
            rendezvous.send(comm.size - 1, b"I wait")
            begun = time.monotonic()
            with pytest.raises(CommError):
                verb(comm)
            assert time.monotonic() - begun < 2.0
        for further in VERBS.values():
            with pytest.raises(CommError):
                further(comm)
        assert everybody.agree(True)
    assert connect(rendezvous, everyone(rendezvous), "revoke, all again").agree(True)


def messages_come_whole_and_in_order(rendezvous: Rendezvous) -> None:
    comm = connect(rendezvous, everyone(rendezvous), "messages")
    assert rendezvous.receive() == []
    assert comm.agree(True)
    for size in (0, 1, 100, 5000, 0):
        for process in everyone(rendezvous):  # itself too
            rendezvous.send(process, bytes([rendezvous.process]) * size)
    assert receive(rendezvous, 5 * comm.size) == {
        process: [bytes([process]) * size for size in (0, 1, 100, 5000, 0)] for process in range(comm.size)
    }
    assert comm.agree(True)
    assert rendezvous.receive() == []


def a_thousand_messages_wait_for_who_is_busy(rendezvous: Rendezvous) -> None:
    comm = connect(rendezvous, everyone(rendezvous), "thousand")
    for number in range(1000):
        rendezvous.send((rendezvous.process + 1) % comm.size, number.to_bytes(2, "big"))
    assert comm.agree(True)
    assert receive(rendezvous, 1000) == {
        (rendezvous.process - 1) % comm.size: [number.to_bytes(2, "big") for number in range(1000)]
    }
    assert comm.agree(True)


def the_first_proposal_stands(rendezvous: Rendezvous) -> None:
    comm = connect(rendezvous, everyone(rendezvous), "register")
    names = [f"view-{number}" for number in range(20)]
    assert [rendezvous.look_up(name) for name in names] == [None] * 20
    assert comm.agree(True)
    stand = [rendezvous.propose(name, f'{{"by": {rendezvous.process}, "of": "{name}"}}') for name in names]
    assert comm.agree(True)
    assert [rendezvous.look_up(name) for name in names] == stand
    assert [rendezvous.propose(name, "too late") for name in names] == stand
    assert all_gather_bytes(comm, repr(stand).encode()) == [repr(stand).encode()] * comm.size
    for name, text in zip(names, stand, strict=True):
        assert text in [f'{{"by": {process}, "of": "{name}"}}' for process in range(comm.size)]


def values_stand_as_they_were_written(rendezvous: Rendezvous) -> None:
    comm = connect(rendezvous, everyone(rendezvous), "values")
    texts = {f"{size} bytes": "x" * (size - 1) + "." * (size > 0) for size in (0, 1, 1000, 1024, 3000)}
    texts |= {"n" * 40: "a long name", "lines": "two\nlines, 'quoted' \"twice\"", "not ASCII": "ü" * 1500}
    for name, text in texts.items():
        assert rendezvous.propose(name, text) == text
    assert comm.agree(True)
    assert {name: rendezvous.look_up(name) for name in texts} == texts
    assert comm.agree(True)


def two_threads_at_once(rendezvous: Rendezvous) -> None:
    comm = connect(rendezvous, everyone(rendezvous), "threads")
    errors: list[BaseException] = []
    after = (rendezvous.process + 1) % comm.size

    def beat() -> None:
        try:
            for number in range(200):
                rendezvous.send(after, number.to_bytes(2, "big"))
                assert rendezvous.gone() == frozenset()
                assert rendezvous.look_up("nothing") is None
        except BaseException as error:
            errors.append(error)

    daemon = threading.Thread(target=beat, daemon=True)
    daemon.start()
    for number in range(100):
        assert comm.all_gather(np.array(number)).tolist() == [number] * comm.size
        rendezvous.propose(f"thread {number}", "x")
    daemon.join(AMPLE_SECONDS)
    assert not daemon.is_alive()
    assert not errors
    assert list(receive(rendezvous, 200).values()) == [[number.to_bytes(2, "big") for number in range(200)]]
    assert comm.agree(True)


LAWS = {
    law.__name__: law
    for law in (
        connect_numbers_the_ranks_in_the_given_order,
        connect_of_some_is_no_matter_of_the_others,
        communicators_do_not_meet,
        a_name_connects_once,
        who_does_not_come_is_a_deadline_error,
        connect_is_watched,
        verbs_are_watched,
        a_watch_is_called_about_every_millisecond,
        revoke_wakes_those_that_wait,
        messages_come_whole_and_in_order,
        a_thousand_messages_wait_for_who_is_busy,
        the_first_proposal_stands,
        values_stand_as_they_were_written,
        two_threads_at_once,
    )
}
