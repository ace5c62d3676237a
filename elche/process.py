"""How this process ends, where others wait for it or go on without it.

Bare MPI knows one good end, MPI_Finalize on all ranks; a rank that raises or calls sys.exit(n) hangs in it,
and so do the others. Here such a rank says farewell and is gone. What Open MPI 5 was found to understand: an
end by a signal is a lost rank, and so is exit code 0; another exit code of one rank stalls the others, unless
a guard (elche.mpi_launch.guard) turns it into a signal. After a loss MPI_Finalize may hang: it is left out.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

from elche.comm.base import Comm, flush_output
from elche.comm.group import Group
from elche.errors import DeadlineError, RankError

STOPS = {signal.SIGTERM: 143, signal.SIGINT: 130}


class Ending:
    """What this process does at its end.

    Attributes:
        asked: the signal that asked this process to leave, SIGTERM or SIGINT; None: none has.
        exit_code: what the script ends with, as far as it has said.
    """

    asked: signal.Signals | None
    exit_code: int

    def __init__(self, comm: Comm, group: Group | None, *, guarded: bool) -> None:
        """Note who is left behind; nothing is changed yet.

        Args:
            comm: the ranks at the start.
            group: who they are, where the job goes on without some; else None.
            guarded: whether a guard turns a bad end of this process into one that MPI understands.
        """
        self._comm, self._group, self._guarded, self._pid = comm, group, guarded, os.getpid()
        self.asked, self.exit_code = None, 0

    def take_over(self, shutdown: Callable[..., None]) -> None:
        """Be asked at each of this process's ends.

        Args:
            shutdown: parts from the other ranks, `shutdown(reason, exit_code)`.
        """
        self._shutdown = shutdown
        if self._group is None:
            atexit.register(shutdown)
            if self._comm.size > 1:
                sys.excepthook = self._on_exception
            return
        atexit.register(self._at_exit)
        sys.excepthook = self._on_exception
        threading.excepthook = self._on_thread_exception
        self._watch_exit()
        if threading.current_thread() is threading.main_thread():
            for number in STOPS:
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.asked is not None:  # twice: at once
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.asked = signal.Signals(number)

    def _watch_exit(self) -> None:
        """Learn the code of sys.exit(code), which nothing tells at exit."""
        plain = sys.exit

        def exit_(status: Any = None) -> NoReturn:
            if threading.current_thread() is threading.main_thread():
                self.exit_code = status if isinstance(status, int) else int(status is not None)
            plain(status)

        sys.exit = exit_

    def _on_thread_exception(self, args: threading.ExceptHookArgs) -> None:
        if args.exc_type is SystemExit:
            return
        assert args.exc_value is not None
        self._on_exception(args.exc_type, args.exc_value, args.exc_traceback)

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        sys.__excepthook__(kind, error, trace)
        if os.getpid() != self._pid:  # a fork is no rank
            return
        reason, self.exit_code = ("stalled", 5) if isinstance(error, DeadlineError) else ("error", 1)
        self._shutdown(reason, self.exit_code)
        if self._group is not None:
            self._go(self.exit_code)
        elif not isinstance(error, RankError):  # that is raised on every rank: each ends by itself
            self._comm.abort(self.exit_code)

    def _at_exit(self) -> None:
        """Run what else is to be run at exit, then go without MPI_Finalize."""
        if os.getpid() != self._pid:
            return
        self._shutdown(None, self.exit_code)
        atexit.unregister(self._at_exit)
        atexit._run_exitfuncs()  # the rest, those registered before this one
        self._go(self.exit_code)

    def _go(self, exit_code: int) -> NoReturn:
        """End this process so that those who go on take notice, and at once."""
        flush_output()
        assert self._group is not None
        if exit_code != 0 and not self._guarded:
            if not self._group.fails_last():
                os.kill(os.getpid(), signal.SIGKILL)
            self._group.end("error")  # spares wait, and an exit code would not tell them
        os._exit(exit_code)
