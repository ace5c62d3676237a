"""Signs of life: a thread that tells the other processes, ten times a second, what this one is doing.

The training loop only writes down what it is at (`at`), so a batch costs next to nothing. A stopped process
sends nothing; one whose training loop hangs goes on telling for how long it has been in the same batch. How
long is too long the sender says itself, for it knows its batches. The same thread hears the others.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any, NamedTuple

from elche.comm.base import Rendezvous
from elche.errors import CommError
from elche.policy.membership import Answer, Knock

INTERVAL_SECONDS = 0.1
PROCESSES_PER_INTERVAL = 64  # more take longer turns: what is sent stays below 0.1 % of a core
LONGEST_STEP_SECONDS = 0.3
FRESH_SECONDS = 0.5  # a knock counts for so long: who knocked may have died since
ENTERING_SECONDS = 2.0  # how long one that is being let in may be silent
HEARD_SECONDS = 5.0  # who was not heard for so long and is no member gets no messages: they would pile up


class Beat(NamedTuple):
    """What a process told last.

    Attributes:
        heard: when, by this process's awake clock.
        doing: what it is at.
        batches: batches it has finished.
        age: for how many seconds it has been at it; 0 where it only waits for others.
        limit: after how many seconds it is to be called silent.
    """

    heard: float
    doing: str
    batches: int
    age: float
    limit: float


class Heard(NamedTuple):
    """A knock, when it came, and the epoch for which it is."""

    heard: float
    knock: Knock
    epoch: int


class AwakeClock:
    """Counts the seconds in which this process runs; while it is stopped the clock stands.

    A process that wakes must not find all others silent because its own clock has moved on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last, self._seconds = time.monotonic(), 0.0

    def now(self) -> float:
        """Return the seconds this process has been awake; to be asked at least every 0.3 s."""
        with self._lock:
            last, self._last = self._last, time.monotonic()
            self._seconds += min(self._last - last, LONGEST_STEP_SECONDS)
            return self._seconds


class Pulse(threading.Thread):
    """Tells of this process and hears the others; every attribute may be read at any time.

    Attributes:
        clock: the awake clock.
        beats: by process, what was heard last.
        answers: by generation and process, answers to a roll call.
        others: the processes to tell: the members of the view.
        generation: the view this process knows.
        epoch: the epoch it is in, told to those who knock; -1: it is no member.
        num_batches: finished here.
    """

    clock: AwakeClock
    beats: dict[int, Beat]
    answers: dict[int, dict[int, Answer]]
    others: frozenset[int]
    generation: int
    epoch: int
    num_batches: int

    def __init__(self, rendezvous: Rendezvous, others: frozenset[int]) -> None:
        """Know whom to tell; `start()` begins to.

        Args:
            rendezvous: how messages travel.
            others: the processes to tell.
        """
        super().__init__(name="elche-pulse", daemon=True)
        self.clock = AwakeClock()
        self.beats: dict[int, Beat] = {}
        self.answers: dict[int, dict[int, Answer]] = {}
        self.others, self.generation, self.epoch, self.num_batches = others, 0, -1, 0
        self._knocks: dict[int, Heard] = {}
        self._admitted: dict[int, int] = {}  # by process, the newest generation that has let it in
        self._here: int | None = None
        self._woken = self._stopped = False
        self._rendezvous, self._lock, self._pause = rendezvous, threading.Lock(), threading.Event()
        self._doing, self._since, self._limit, self._waits = "starting", self.clock.now(), 0.0, True
        self._told_limit = 0.0
        self._interval = INTERVAL_SECONDS * max(1.0, rendezvous.num_processes / PROCESSES_PER_INTERVAL)

    def at(self, doing: str, limit: float, *, waits: bool = False) -> None:
        """Note what this process does from now on.

        Args:
            doing: in a few words, for the others' messages.
            limit: after how many seconds of it, or without a word, it is to be called silent.
            waits: whether it waits for others: then only silence counts, however long it takes.
        """
        self._doing, self._since, self._limit, self._waits = doing, self.clock.now(), limit, waits
        if limit < self._told_limit:  # were it stopped now, the others would wait for as long as it told last
            self._pause.set()

    def run(self) -> None:
        """Tell and hear until `stop()`."""
        while not self._stopped:
            self._pause.clear()
            try:
                self.tell_all(self._beat())
                self.listen()
            except CommError:
                return
            self._pause.wait(self._interval)

    def stop(self) -> None:
        """End the thread; waits for it for a moment."""
        self._stopped = True
        self._pause.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(1.0)

    def tell_all(self, message: list[Any]) -> None:
        """Send to the members, and to whoever was heard lately."""
        now, text = self.clock.now(), json.dumps(message).encode()
        lately = {process for process, beat in list(self.beats.items()) if now - beat.heard < HEARD_SECONDS}
        for process in (self.others | lately) - self._rendezvous.gone() - {self._rendezvous.process}:
            self._rendezvous.send(process, text)

    def tell(self, process: int, message: list[Any]) -> None:
        """Send to one process."""
        self._rendezvous.send(process, json.dumps(message).encode())

    def answer(self, generation: int, answer: Answer) -> None:
        """Answer to the roll of a view, see `answers`."""
        self.tell_all(["answer", generation, *answer[1:]])

    def listen(self) -> None:
        """Take in what has come."""
        with self._lock:
            now = self.clock.now()
            for sender, text in self._rendezvous.receive():
                kind, *words = json.loads(text)
                self._take(sender, kind, words, now)

    def last_beat(self, process: int) -> tuple[Beat, float] | None:
        """Return what a process told last, and how many seconds ago; None where it never did."""
        beat = self.beats.get(process)
        return None if beat is None else (beat, self.clock.now() - beat.heard)

    def knocks(self, epoch: int) -> list[Knock]:
        """Return the fresh knocks of those who live and wait for this epoch, by process."""
        now, gone = self.clock.now(), self._rendezvous.gone()
        return [
            heard.knock
            for process, heard in sorted(self._knocks.items())
            if now - heard.heard < FRESH_SECONDS and heard.epoch == epoch and process not in gone
        ]

    def note_admitted(self, process: int, generation: int) -> None:
        """Forget the knocks of a process that the view of this generation lets in: it may go at once."""
        self._admitted[process] = generation
        self._knocks.pop(process, None)

    def take_here(self) -> int | None:
        """Return the epoch that the last reply to a knock told, once; None where none came."""
        here, self._here = self._here, None
        return here

    @property
    def woken(self) -> bool:
        """Whether a member has asked this process to come."""
        return self._woken

    def _beat(self) -> list[Any]:
        age = 0.0 if self._waits else self.clock.now() - self._since
        self._told_limit = self._limit
        return ["beat", self._doing, self.num_batches, age, self._told_limit]

    def _take(self, sender: int, kind: str, words: list[Any], now: float) -> None:
        if kind == "beat":
            self.beats[sender] = Beat(now, *words)
        elif kind == "answer":
            generation, answer = words[0], Answer(sender, *words[1:])
            self.answers.setdefault(generation, {})[sender] = answer
        elif kind == "knock":
            knock_kind, slot, epoch, generation = words
            if generation < self._admitted.get(sender, 0):
                return  # it was let in since
            self._knocks[sender] = Heard(now, Knock(sender, knock_kind, slot), epoch)
            self.beats[sender] = Beat(now, "knocking", 0, 0.0, ENTERING_SECONDS)  # it may have just woken
            if self.epoch >= 0:
                self.tell(sender, ["here", self.epoch])
        elif kind == "here":
            self._here = words[0]
        elif kind == "wake":
            self._woken = True
