"""Waiting: it ends in time, and it leaves the core alone."""

from __future__ import annotations

import os
import time

import pytest

from elche.comm import polling


def test_what_is_done_needs_no_time():
    assert polling.Poller().wait(lambda: True, limit_seconds=1e-9)


def test_it_asks_until_it_is_done():
    answers = iter([False] * 500 + [True])
    assert polling.Poller().wait(lambda: next(answers), limit_seconds=30.0)
    assert next(answers, None) is None


@pytest.mark.parametrize("limit_seconds", [1e-6, 1e-4, 0.05])
def test_it_gives_up_at_the_limit_and_not_before(limit_seconds):
    begun = time.perf_counter()
    assert not polling.Poller().wait(lambda: False, limit_seconds=limit_seconds)
    assert limit_seconds <= time.perf_counter() - begun < limit_seconds + 1.0


def test_a_long_wait_leaves_most_of_the_core_to_others():
    begun = time.thread_time()
    assert not polling.Poller().wait(lambda: False, limit_seconds=0.5)
    assert time.thread_time() - begun < 0.25


def test_an_error_of_the_question_comes_through():
    with pytest.raises(ZeroDivisionError):
        polling.Poller().wait(lambda: 1 // 0 == 0, limit_seconds=1.0)


def test_after_a_slow_yield_it_naps_instead(monkeypatch):
    now, yields = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))

    def slow_yield():
        yields.append(now[0])
        now[0] += 0.004

    monkeypatch.setattr(os, "sched_yield", slow_yield)
    poller = polling.Poller()

    def tick():
        now[0] += 1e-6
        return False

    for _ in range(3):
        poller.wait(tick, limit_seconds=0.01)
    assert len(yields) == 1
    now[0] += 1.0
    poller.wait(tick, limit_seconds=0.01)
    assert len(yields) == 2
