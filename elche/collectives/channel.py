"""The thread that brings operations of one process set to their end while Python computes.

A rank with something outstanding meets the others in rounds: all tell what they have submitted since the
last (`rounds.py`), all come to the same verdicts (`negotiate.py`), and do what is ready (`execution.py`). A
rank with nothing outstanding comes to no round and sleeps on a condition, at no cost. Who waits for one that
computes waits as every verb of `Comm` does; a rank whose operations wait for other names rests between two
rounds that brought no news, 5 ms at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from elche.collectives.execution import execute
from elche.collectives.fusion import batches
from elche.collectives.handles import Handle
from elche.collectives.negotiate import Failed, Joined, Negotiation, Ready, Verdict
from elche.collectives.requests import ADD_SET, JOIN_NAME, REMOVE_SET, News, Request
from elche.collectives.rounds import exchange
from elche.collectives.stalls import StallWatch
from elche.comm.base import Comm
from elche.errors import CommError, DuplicateNameError, HorovodInternalError, OperationMismatchError

LINGER_SECONDS = 1e-3  # what begins in this time goes in one round, unless somebody waits already
REST_SECONDS, LONGEST_REST_SECONDS = 0.5e-3, 5e-3
LEAVE_SECONDS = 1.0  # a farewell that nobody hears in this time is not waited for


class Channel:
    """The operations of one process set, and their thread.

    Attributes:
        size: how many ranks there are.
        rank: this one's number among them.
        change_sets: adds or removes a process set, as all ranks have agreed.
    """

    size: int
    rank: int
    change_sets: Callable[[Ready], None]

    def __init__(
        self, connect: Callable[[], Comm], rank: int, size: int, deadline_seconds: float, title: str
    ) -> None:
        """Begin without a thread.

        Args:
            connect: makes the communicator, in the thread, when there is a first operation.
            rank: this rank's number.
            size: how many ranks there are.
            deadline_seconds: how long an operation waits for a rank.
            title: of the process set, for texts.
        """
        self.rank, self.size, self.change_sets = rank, size, lambda _: None
        self._make_comm, self._deadline, self._title = connect, deadline_seconds, title
        self._comm: Comm | None = None
        self._stalls = StallWatch(f"rank {rank} of {title}", deadline_seconds)
        self._changed, self._ended = threading.Condition(), threading.Condition()
        self._new: list[Request] = []
        self._doubled: list[str] = []
        self._submitted: dict[str, float] = {}  # by name, what has not ended, with or without a handle: when
        self._handles: dict[str, Handle] = {}
        self._later: dict[str, list[tuple[Request, Handle | None]]] = {}  # once a refusal of the name is told
        self._lingers = self._hurried = False
        self._broken: HorovodInternalError | None = None
        self._closing_since: float | None = None
        self._number, self._num_joins = 0, 0
        self._thread: threading.Thread | None = None

    # Called by the script's threads.

    def name(self, name: str | None) -> str:
        """Return `name`, or the next of the numbers that stand for names; they are the same on all ranks."""
        if name is not None:
            return str(name)
        with self._changed:
            self._number += 1
            return f"noname.{self._num_joins}.{self._number}"

    def submit(self, handle: Handle) -> Handle:
        """Let an operation begin.

        Args:
            handle: of it.

        Returns:
            The handle.

        Raises:
            DuplicateNameError: one of this name has not ended.
            HorovodInternalError: there can be no operations any more.
        """
        self._post(handle.request, handle)
        return handle

    def refuse(self, request: Request) -> None:
        """Tell the other ranks that this one's call was refused; its caller is told by an exception."""
        self._post(request, None)

    def _post(self, request: Request, handle: Handle | None) -> None:
        if handle is not None:
            handle.hurry, handle.ended = self._hurry, self._ended
        with self._changed:
            if self._broken is not None:
                raise HorovodInternalError(
                    f"{request.kind} {request.name!r} is not possible any more: {self._broken}"
                ) from self._broken
            if request.name in self._submitted and self._is_refusal(request.name):
                self._later.setdefault(request.name, []).append((request, handle))
                return
            if request.name in self._submitted:
                self._doubled.append(request.name)
                self._changed.notify()
                raise DuplicateNameError(
                    f"{request.kind}: {request.name!r} is the name of an operation that has not ended; "
                    "use a different tensor name"
                )
            self._submitted[request.name] = time.monotonic()
            self._new.append(request)
            if handle is not None:
                self._handles[request.name] = handle
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="elche-collectives", daemon=True)
                self._thread.start()
            if not self._lingers:  # it would wake for each of a thousand, and take the lock of Python's
                self._changed.notify()

    def _hurry(self) -> None:
        """Note that somebody waits."""
        with self._changed:
            self._hurried = True
            self._changed.notify()

    def _is_refusal(self, name: str) -> bool:
        """Return whether the newest of a name was refused: its caller need not wait to use it again."""
        later = self._later.get(name)
        return later[-1][1] is None if later else name not in self._handles

    def begin_close(self) -> None:
        """Tell the other ranks that this one comes no more."""
        with self._changed:
            self._closing_since = time.monotonic()
            self._changed.notify()

    def close(self) -> None:
        """Let everything outstanding fail, and end the thread; may be repeated."""
        self.begin_close()
        if self._thread is not None:
            self._thread.join(2 * LEAVE_SECONDS)
        self._break(HorovodInternalError("elche.shutdown() was called"))
        if self._thread is None and self._comm is not None:  # else its thread closes it
            self._comm.close()

    def connect(self) -> Comm:
        """Make the communicator, if it is not made yet; not in two threads at once."""
        self._comm = self._comm or self._make_comm()
        return self._comm

    # In the thread.

    def _run(self) -> None:
        try:
            comm = self.connect()
            outer = comm.watch
            comm.watch = lambda: self._look(comm, outer)
            negotiation, quiet_rounds = Negotiation(self.size), 0
            while True:
                self._await_work(quiet_rounds)
                news_w = exchange(comm, self._take_news())
                self._settle(comm, negotiation.advance(news_w))
                quiet_rounds = 0 if any(news != News() for news in news_w) else quiet_rounds + 1
                leaving = [rank for rank, news in enumerate(news_w) if news.leaving]
                if leaving:
                    raise CommError(f"ranks {leaving} of {self._title} have shut down")
                with self._changed:
                    self._stalls.after_round(self._awaited(), negotiation.missing)
        except BaseException as error:
            self._break(error)
            if self._comm is not None:
                with suppress(CommError):  # this process itself may be what is gone
                    self._comm.revoke()
                    self._comm.close()

    def _await_work(self, quiet_rounds: int) -> None:
        """Return when there is a round to go to; sleeps while nothing is outstanding."""
        with self._changed:
            if self._closing_since is None and not self._new and self._submitted and quiet_rounds:
                rest = min(LONGEST_REST_SECONDS, REST_SECONDS * 2 ** min(quiet_rounds, 10))
                self._changed.wait(rest)
            self._changed.wait_for(lambda: self._submitted or self._closing_since is not None)
            self._lingers = True
            if self._new:
                self._changed.wait_for(
                    lambda: self._hurried or self._closing_since is not None, LINGER_SECONDS
                )
            self._lingers = self._hurried = False
            self._stalls.begin_round()

    def _take_news(self) -> News:
        with self._changed:
            begun = self._stalls.begun
            expired = [name for name, since in self._awaited().items() if begun - since > self._deadline]
            news = News(
                tuple(self._new), tuple(expired), tuple(self._doubled), self._closing_since is not None
            )
            self._new, self._doubled = [], []
            return news

    def _awaited(self) -> dict[str, float]:
        """Return what this rank waits for, and since when; who has joined waits as long as others work."""
        return {name: since for name, since in self._submitted.items() if name != JOIN_NAME}

    def _settle(self, comm: Comm, verdicts: Sequence[Verdict]) -> None:
        """Do what is ready, let fail what is refused."""
        for verdict in verdicts:
            if isinstance(verdict, Failed):
                handle = self._take([verdict.name]).get(verdict.name)
                if handle is not None:
                    kind = OperationMismatchError if verdict.differs else HorovodInternalError
                    handle.fail(kind(verdict.why))
        for batch in batches([verdict for verdict in verdicts if isinstance(verdict, Ready)]):
            if batch[0].one.kind in (ADD_SET, REMOVE_SET):
                self.change_sets(batch[0])
            handles = self._take([ready.name for ready in batch])
            try:
                execute(comm, batch, handles)
            except BaseException as error:
                self._fail(handles.values(), error)
                raise
            self._notify()
        for verdict in verdicts:
            if isinstance(verdict, Joined):
                self._end_join(verdict.last)
        self._notify()

    def _notify(self) -> None:
        """Wake those that wait for a handle."""
        with self._ended:
            self._ended.notify_all()

    def _end_join(self, last: int) -> None:
        with self._changed:
            self._number, self._num_joins = 0, self._num_joins + 1
        for handle in self._take([JOIN_NAME]).values():
            handle.last = last
            handle.succeed()

    def _take(self, names: Sequence[str]) -> dict[str, Handle]:
        """Return the handles of operations that end now; their names are free again."""
        with self._changed:
            handles = {name: self._handles.pop(name) for name in names if name in self._handles}
            self._doubled = [name for name in self._doubled if name not in names]
            self._stalls.forget(names)
            for name in names:
                self._submitted.pop(name, None)
                later = self._later.pop(name, [])
                if later:
                    self._post(*later[0])
                    self._later.update({name: later[1:]} if later[1:] else {})
            return handles

    # Waiting and failing.

    def _look(self, comm: Comm, outer: Callable[[], None] | None) -> None:
        """While a verb waits: end it where it makes no sense any more, and tell of ranks that do not come."""
        if outer is not None:
            outer()
        if self._closing_since is not None and time.monotonic() - self._closing_since > LEAVE_SECONDS:
            raise CommError("this rank has shut down")
        with self._changed:
            self._stalls.look(comm, self._submitted)

    def _break(self, error: BaseException) -> None:
        """Let everything outstanding fail, and all that is submitted from now on."""
        with self._changed:
            if self._broken is None:
                absent = f"; ranks {self._stalls.absent} have not come" if self._stalls.absent else ""
                self._broken = HorovodInternalError(f"{error}{absent}")
                self._broken.__cause__ = error
            later = [
                handle for waiting in self._later.values() for _, handle in waiting if handle is not None
            ]
            self._later.clear()
            handles = [*self._take([*self._submitted]).values(), *later]
        self._fail(handles, self._broken)

    def _fail(self, handles: Iterable[Handle], error: BaseException) -> None:
        for handle in handles:
            request = handle.request
            failure = HorovodInternalError(f"{request.kind} {request.name!r} cannot end: {error}")
            failure.__cause__ = error
            handle.fail(failure)
        self._notify()
