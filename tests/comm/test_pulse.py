"""Signs of life: what a process told last is what the others go by."""

from __future__ import annotations

import json

from waiting import until

from elche.comm import pulse
from elche.comm.pulse import Pulse


class Told:
    """A rendezvous of two processes that keeps what the first tells the second."""

    process, num_processes = 0, 2

    def __init__(self):
        self.beats = []

    def send(self, process, message):
        _, doing, _, _, limit = json.loads(message)
        self.beats.append((doing, limit))

    def receive(self):
        return []

    def gone(self):
        return frozenset()


def test_a_shorter_limit_is_told_at_once_and_a_longer_one_in_time(monkeypatch):
    """A process that is stopped right after its long first batch would else be waited for as if in it."""
    monkeypatch.setattr(pulse, "INTERVAL_SECONDS", 600.0)
    told = Told()
    beating = Pulse(told, frozenset({0, 1}))
    beating.at("in a first batch", 60.0)
    beating.start()
    try:
        until(lambda: told.beats == [("in a first batch", 60.0)])
        beating.at("in a batch", 10.0)
        until(lambda: told.beats[1:] == [("in a batch", 10.0)])
        beating.at("resting", 600.0)
        beating.at("in a batch again", 10.0)
        beating.at("in a shorter one", 5.0)
        until(lambda: told.beats[2:] == [("in a shorter one", 5.0)])
    finally:
        beating.stop()
    assert not beating.is_alive()
