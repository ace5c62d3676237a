"""The `memory` backend: the ranks are threads of one process. World size 1, tests, simulation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from elche.comm.base import (
    DEADLINE_SECONDS,
    Buffer,
    require_contiguous,
    require_members,
    require_pairs,
    require_root,
    require_rows,
    require_seconds,
)
from elche.comm.meeting import Meeting
from elche.errors import CommError, ConfigError, DeadlineError

Result = TypeVar("Result")


def single(*, deadline_seconds: float = DEADLINE_SECONDS) -> MemoryComm:
    """Return the communicator of a world of one rank, the caller."""
    return MemoryComm(Meeting(1), 0, deadline_seconds=deadline_seconds)


def run(n: int, fn: Callable[..., Result], *args: Any, timeout_seconds: float = 60.0) -> list[Result]:
    """Call `fn(comm, *args)` on `n` ranks, each a thread, and return their results in rank order.

    When a rank raises, the waits of the others fail at once, and the first error is raised here.

    Args:
        n: the number of ranks, at least 1.
        fn: what each rank does.
        *args: given to each rank after its communicator.
        timeout_seconds: how long all ranks together may take.

    Returns:
        What `fn` returned on rank 0, 1, ...

    Raises:
        ConfigError: `n` is below 1.
        DeadlineError: a rank has not returned in time; its thread is left behind.

    Example:
        >>> run(3, lambda comm: comm.all_gather(np.array([comm.rank])).ravel().tolist())
        [[0, 1, 2], [0, 1, 2], [0, 1, 2]]
    """
    if n < 1:
        raise ConfigError(f"n must be at least 1, got {n}")
    meeting = Meeting(n)
    results: dict[int, Result] = {}
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            results[rank] = fn(MemoryComm(meeting, rank), *args)
        except BaseException as error:  # raised again by run()
            errors.append(error)
            meeting.fail(f"rank {rank} ended with {type(error).__name__}: {error}", error)
        meeting.leave(rank)

    run_threads(n, work, timeout_seconds)
    if errors:
        raise next((error for error in errors if error is meeting.cause), errors[0])
    if late := meeting.late():
        meeting.fail(f"run() has ended without ranks {late}")
        raise DeadlineError(
            f"run() did not end within {timeout_seconds:g} s; ranks {late} of {n} have not returned"
        )
    return [results[rank] for rank in range(n)]


def run_threads(n: int, work: Callable[[int], None], timeout_seconds: float) -> None:
    """Call `work(0)`, ..., `work(n - 1)`, each in a thread; return when all have returned, or it is time."""
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(n)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + timeout_seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


class MemoryComm:
    """`Comm` between threads; sums run over the ranks in their order."""

    def __init__(self, meeting: Meeting, rank: int, *, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self.deadline_seconds = require_seconds(deadline_seconds)
        self.rank = self.local_rank = rank
        self.size = self.local_size = meeting.size
        self.cross_rank, self.cross_size, self.hosts = 0, 1, [0] * meeting.size
        self.watch: Callable[[], None] | None = None
        self._meeting = meeting
        self._unusable: str | None = None

    def all_gather(self, send: Buffer, *, deadline_seconds: float | None = None) -> Buffer:
        """Return every rank's `send`, stacked in rank order: shape `(size, *send.shape)`, same dtype."""
        require_contiguous("all_gather", send)
        rows: Buffer = self._meet(f"all_gather of {_kinds([send])}", send, np.stack, deadline_seconds)
        return np.copy(rows)

    def all_reduce(
        self, sends: Sequence[Buffer], recvs: Sequence[Buffer], *, deadline_seconds: float | None = None
    ) -> None:
        """Sum `sends[i]` over the ranks into `recvs[i]`, for all i at once; `sends` stay as they were."""
        require_pairs(sends, recvs)
        sums = self._meet(f"all_reduce of {_kinds(sends)}", sends, _sum_in_rank_order, deadline_seconds)
        for recv, total in zip(recvs, sums, strict=True):
            np.copyto(recv, total)

    def all_to_all(self, send: Buffer, *, deadline_seconds: float | None = None) -> Buffer:
        """Return in row w what rank w has for this one, its `send[rank]`; `send` is `(size, ...)`."""
        require_rows(send, self.size)
        call = f"all_to_all of {_kinds([send])}"
        sent: Buffer = self._meet(call, send, lambda rows_w: np.stack(rows_w, axis=1), deadline_seconds)
        return np.copy(sent[self.rank])

    def broadcast(
        self, buffers: Sequence[Buffer], *, root: int, deadline_seconds: float | None = None
    ) -> None:
        """Overwrite `buffers` on every rank with those of rank `root`, in place."""
        require_root(root, self.size)
        require_contiguous("broadcast", *buffers)
        sent = self._meet(
            f"broadcast from rank {root} of {_kinds(buffers)}",
            buffers,
            lambda buffers_w: [buffer.copy() for buffer in buffers_w[root]],
            deadline_seconds,
        )
        if self.rank != root:
            for buffer, source in zip(buffers, sent, strict=True):
                np.copyto(buffer, source)

    def agree(self, ok: bool, *, deadline_seconds: float | None = None) -> bool:
        """Return whether every rank said `ok`; nobody returns before everybody has spoken."""
        return bool(self._meet("agree", ok, all, deadline_seconds))

    def absent(self) -> list[int]:
        """Return the ranks that have not come to the verb under way, as far as is known."""
        return self._meeting.late()

    def beside(self, ranks: Sequence[int], name: str, *, deadline_seconds: float) -> MemoryComm:
        """Return another communicator of these ranks, in this order; they all call it, a name once."""
        members = require_members(self.rank, ranks, self.size)
        comm = MemoryComm(self._meeting.beside(name, members), members.index(self.rank))
        comm.watch, comm.deadline_seconds = self.watch, deadline_seconds
        return comm

    def revoke(self) -> None:
        """Make every verb under way and to come fail with `CommError`, on all ranks; may be repeated."""
        self._meeting.fail(f"rank {self.rank} revoked the communicator")

    def close(self) -> None:
        """Refuse further verbs; ranks that wait for this one fail at once."""
        self._unusable = self._unusable or "it was closed"
        self._meeting.leave(self.rank)

    def abort(self, code: int) -> None:
        """Make all waits and further verbs of all ranks fail."""
        self._meeting.fail(f"rank {self.rank} aborted with exit code {code}")

    def _meet(
        self, call: str, value: Any, combine: Callable[[list[Any]], Any], deadline_seconds: float | None
    ) -> Any:
        verb = call.split()[0]
        if self._unusable is not None:
            raise CommError(f"rank {self.rank} of {self.size} cannot {verb}: {self._unusable}")
        limit = self.deadline_seconds if deadline_seconds is None else require_seconds(deadline_seconds)
        try:
            return self._meeting.meet(self.rank, call, value, combine, limit, self._while_waiting())
        except BaseException as error:
            self._unusable = f"{verb} ended with {error!r}"
            self._meeting.leave(self.rank, error)
            raise

    def _while_waiting(self) -> Callable[[], None] | None:
        """Return what a verb that waits calls about every millisecond."""
        return self.watch


def _kinds(buffers: Sequence[Buffer]) -> str:
    return ", ".join(f"{buffer.dtype}{list(buffer.shape)}" for buffer in buffers) or "nothing"


def _sum_in_rank_order(sends_w: list[Sequence[Buffer]]) -> list[Buffer]:
    sums = [send.copy() for send in sends_w[0]]
    for sends in sends_w[1:]:
        for total, send in zip(sums, sends, strict=True):
            np.add(total, send, out=total)
    return sums
