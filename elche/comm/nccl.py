"""NCCL among the ranks of a host communicator: CuPy's bindings on raw pointers, nothing waited for blindly.

NCCL's calls may block: the first ones while ranks connect, all of them when a rank is gone. Each runs in a
thread of its own, while the caller waits with a deadline and with the host communicator's `watch`; what is
stuck ends when it is aborted, which NCCL allows from another thread.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from elche.comm.base import LIKELY_CAUSE, Comm, all_gather_bytes, broadcast_bytes
from elche.comm.nccl_call import (
    CLOSE_SECONDS,
    IN_PROGRESS,
    TIMED_OUT,
    Call,
    abort_unclosed,
    aborting,
    as_bytes,
    code_of,
    forms_of,
    in_progress_allowed,
    text_of,
)
from elche.comm.nccl_parts import Part
from elche.comm.polling import WATCH_SECONDS, Poller
from elche.errors import CommError, DeadlineError, ElcheError

CONNECT_SECONDS = 60.0  # a rank that fails alone keeps the others waiting for so long
ABORT_SECONDS = 30.0
NAP_SECONDS = 50e-6
ATTEND_SECONDS = 10e-3
LATE = "did not end in time"


class NcclComm:
    """An NCCL communicator of exactly the ranks of a host communicator, which carries all but the sums.

    After a failure it is aborted, and further verbs raise `CommError`.

    Attributes:
        host: the ranks.
        failed: what NCCL itself failed with; None where it did not, though a rank may be lost.
    """

    host: Comm
    failed: str | None

    def __init__(self, cupy: Any, host: Comm, device: int) -> None:
        """Prepare; nothing is called yet.

        Args:
            cupy: the package.
            host: the ranks.
            device: index of this rank's GPU.
        """
        self.host, self.failed = host, None
        self._cupy, self._device, self._poller = cupy, device, Poller()
        kind = cupy.cuda.nccl.NcclCommunicator
        self._raw: Any = kind.__new__(kind)  # known before it is made, so that it can be aborted meanwhile
        self._running: Call | None = None
        self._aborting: Call | None = None
        self._attended: threading.Event | None = None
        self._retiring = threading.Lock()
        self._finalizer = weakref.finalize(self, abort_unclosed, self._raw)

    def connect(self) -> str | None:
        """Make the communicator; collective.

        Returns:
            None; or why not, the same text on all ranks, where NCCL failed on some.

        Raises:
            CommError: a rank is lost.
        """
        error, unique = "", b""
        if self.host.rank == 0:
            try:
                unique = as_bytes(self._cupy.cuda.nccl.get_unique_id())
            except Exception as reason:  # CuPy's own, or of the CUDA runtime
                error = f"get_unique_id failed: {text_of(reason)}"
        try:
            unique = broadcast_bytes(self.host, unique, root=0)
            if unique:
                limit = min(CONNECT_SECONDS, self.host.deadline_seconds)
                error = self._tried("init", lambda: self._init(unique), limit)
            words = all_gather_bytes(self.host, error.encode())
        except BaseException:
            self.retire()
            raise
        failures = [f"rank {rank}: {word.decode()}" for rank, word in enumerate(words) if word]
        if not failures:
            return None
        self.end()
        return min(failures, key=lambda text: text.endswith(LATE))  # others wait for the one that failed

    def launch(self, parts: Sequence[Part], stream: int) -> None:
        """Begin to sum over the ranks, or a step of it: all parts in one group.

        Args:
            parts: what to do; all ranks do the same, in one order; each `Send` has its `Receive`.
            stream: handle of the CUDA stream that it is put in.

        Raises:
            CommError: NCCL failed, or a rank is lost.
        """
        self.refuse_aborted()
        limit = self.host.deadline_seconds
        self._run("all_reduce", lambda: self._group(parts, stream), limit)

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Return when all that was launched has ended well.

        Args:
            is_done: asks an event that was recorded behind it.

        Raises:
            CommError: NCCL failed, or a rank is lost.
        """
        try:
            self._leave_alone()
            limit = self.host.deadline_seconds  # from here: it may have been launched before the others came
            if not self._poller.wait(is_done, limit_seconds=limit, watch=self._look):
                raise self._failure("all_reduce", None)
            self._check()  # a sum that was given up ends, too
        except BaseException:
            self.retire()
            raise

    def attend(self) -> None:
        """Look after what was launched until `wait` does: the script may block on the device meanwhile."""
        if self._attended is None and self._aborting is None:
            self._attended = threading.Event()
            Call(partial(self._attend, self._attended))

    def refuse_aborted(self) -> None:
        """Do nothing where this can be used.

        Raises:
            CommError: it was aborted.
        """
        if self._aborting is not None:
            reason = self.failed or "NCCL's communicator was aborted"
            raise CommError(f"{reason}; {self._who()} cannot all_reduce by NCCL")

    def retire(self) -> None:
        """Begin to abort, and do not wait: other ranks' aborts may be needed for it. May be repeated."""
        self._leave_alone()
        with self._retiring:
            if self._aborting is None:
                self._finalizer.detach()
                self._aborting = Call(aborting(self._raw, self._running))

    def end(self, *, limit_seconds: float = ABORT_SECONDS) -> None:
        """Return when this is aborted; may be repeated.

        Args:
            limit_seconds: how long that may take.

        Raises:
            ElcheError: it takes longer, and whatever comes on that GPU would wait behind it for ever; or it
                cannot be done.
        """
        self.retire()
        assert self._aborting is not None
        if not self._aborting.has_ended(limit_seconds):
            raise ElcheError(
                f"NCCL's abort has not ended within {limit_seconds:g} s on {self._who()}: its GPU is stuck, "
                "and this process cannot go on"
            )
        if self._aborting.error is not None:
            raise ElcheError(f"NCCL's abort failed on {self._who()}: {text_of(self._aborting.error)}")

    def close(self) -> None:
        """Abort, and wait for it only for a moment: the process is about to end. May be repeated."""
        with suppress(ElcheError):
            self.end(limit_seconds=CLOSE_SECONDS)

    # In a thread of their own.

    def _init(self, unique: bytes) -> None:
        self._cupy.cuda.runtime.setDevice(self._device)
        for form in forms_of(unique):
            with suppress(TypeError, OverflowError):  # another CuPy's; nothing has been called yet
                self._settle(partial(self._raw.__init__, self.host.size, form, self.host.rank))
                return
        raise TypeError("this CuPy takes unique ids in a form that elche does not know")

    def _group(self, parts: Sequence[Part], stream: int) -> None:
        nccl = self._cupy.cuda.nccl
        self._cupy.cuda.runtime.setDevice(self._device)
        nccl.groupStart()
        try:
            for part in parts:
                with in_progress_allowed():
                    part.put(nccl, self._raw, stream)
        except BaseException:
            with suppress(Exception):  # the group is this thread's, and is to be left whatever it says
                nccl.groupEnd()
            raise
        self._settle(nccl.groupEnd)

    def _settle(self, call: Callable[[], object]) -> None:
        """Do a call to its end, also where NCCL_COMM_BLOCKING=0 lets it return before."""
        while True:
            try:
                call()
            except Exception as error:  # see code_of
                if code_of(error) != IN_PROGRESS or self._aborting is not None:
                    raise
                time.sleep(NAP_SECONDS)
                call = self._raw.check_async_error
            else:
                return

    def _attend(self, done: threading.Event) -> None:
        try:
            while not done.wait(ATTEND_SECONDS):
                self._look()
        except BaseException:  # whoever waits next comes upon it
            self.retire()

    def _leave_alone(self) -> None:
        if (done := self._attended) is not None:
            done.set()
        self._attended = None

    # Waiting, and what goes wrong.

    def _tried(self, verb: str, call: Callable[[], None], limit_seconds: float) -> str:
        """Return what NCCL failed with; nothing where it did not."""
        try:
            self._run(verb, call, limit_seconds)
        except CommError:
            if self.failed is None:
                raise
        return self.failed or ""

    def _run(self, verb: str, call: Callable[[], None], limit_seconds: float) -> None:
        until = time.perf_counter() + limit_seconds
        running = self._running = Call(call)
        try:
            while not running.has_ended(WATCH_SECONDS):
                if time.perf_counter() >= until:
                    raise self._failure(verb, None)
                if self.host.watch is not None:
                    self.host.watch()
            if running.error is not None:
                raise self._failure(verb, running.error)
        except BaseException:
            self.retire()
            raise

    def _look(self) -> None:
        self._check()
        if self.host.watch is not None:
            self.host.watch()

    def _check(self) -> None:
        self.refuse_aborted()
        try:
            with in_progress_allowed():
                self._raw.check_async_error()
        except Exception as error:  # whatever CuPy makes of it
            raise self._failure("all_reduce", error)  # noqa: B904 - it is the cause already

    def _failure(self, verb: str, error: BaseException | None) -> CommError:
        """Note that NCCL failed, None: in time; return what to raise."""
        self.refuse_aborted()  # its calls fail for that
        if error is None or code_of(error) == TIMED_OUT:
            self.failed = f"NCCL's {verb} {LATE}"
            return DeadlineError(f"{self.failed}; {self._who()} waited: {LIKELY_CAUSE}")
        self.failed = f"NCCL's {verb} failed: {text_of(error)}"
        failure = CommError(f"{self.failed}, on {self._who()}")
        failure.__cause__ = error
        return failure

    def _who(self) -> str:
        return f"rank {self.host.rank} of {self.host.size}"
