"""One call of NCCL's, which may block, in a thread of its own; and what CuPy makes of NCCL's results.

A thread costs 51 us, start to end (2 cores, Linux 6.18, Python 3.11), once for each group that is launched.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

CLOSE_SECONDS = 2.0
AGAIN_SECONDS = 0.01
IN_PROGRESS, TIMED_OUT = 7, 8  # of NCCL's results
_not_aborted: list[Any] = []  # CuPy's destructor would wait for other ranks


class Call(threading.Thread):
    """A call under way; it keeps no process from ending.

    Attributes:
        error: what it raised; None: nothing.
    """

    error: BaseException | None

    def __init__(self, call: Callable[[], object]) -> None:
        """Begin.

        Args:
            call: what to do.
        """
        super().__init__(daemon=True)
        self.error, self._call = None, [call]
        self.start()

    def run(self) -> None:
        """Do it."""
        try:
            self._call.pop()()
        except BaseException as error:  # told by whoever waits
            self.error = error

    def has_ended(self, seconds: float) -> bool:
        """Wait so long at most; return whether it has ended."""
        self.join(seconds)
        return not self.is_alive()


def aborting(raw: Any, running: Call | None = None) -> Callable[[], None]:
    """Return what aborts, then destroys, so that CuPy's destructor finds nothing to wait for.

    Args:
        raw: CuPy's communicator.
        running: its last call; one that is still under way ends with it.

    Returns:
        A function that may block.
    """

    def abort() -> None:
        is_late = running is not None and running.is_alive()
        try:
            raw.abort()
            while is_late and running is not None:  # it may have begun just after that
                is_late = not running.has_ended(AGAIN_SECONDS)
                raw.abort()
        except BaseException:
            _not_aborted.append(raw)
            raise
        raw.destroy()

    return abort


def abort_unclosed(raw: Any) -> None:
    """End what nobody has closed: garbage collection must not wait for other ranks.

    Args:
        raw: CuPy's communicator.
    """
    Call(aborting(raw)).has_ended(CLOSE_SECONDS)
    warnings.warn("an NCCL communicator was left open: elche.shutdown() was not called", ResourceWarning, 2)


@contextmanager
def in_progress_allowed() -> Iterator[None]:
    """Take NCCL's "in progress" for success."""
    try:
        yield
    except Exception as error:
        if code_of(error) != IN_PROGRESS:
            raise


def code_of(error: BaseException) -> int | None:
    """Return the result of NCCL's behind an error.

    CuPy 14.2 knows the names of 0 to 6, and raises `KeyError(7)` where it should raise `NcclError(7)`.

    Args:
        error: what a call of CuPy's raised.

    Returns:
        The number; None for any other error.
    """
    is_nccl = type(error).__name__ == "NcclError"  # CUDA's errors have a status, too
    code = (
        error.args[0] if isinstance(error, KeyError) else getattr(error, "status", None) if is_nccl else None
    )
    return code if isinstance(code, int) else None


def text_of(error: BaseException) -> str:
    """Return what an error says, for a reader who has never seen CuPy's."""
    if isinstance(error, KeyError):
        return repr(error) if code_of(error) is None else f"NCCL's result {code_of(error)}"
    return str(error) or repr(error)


def as_bytes(unique: bytes | Sequence[int]) -> bytes:
    """Return a unique id as CuPy 14 gives it; 13 gives a tuple of C's chars, signed or not."""
    return unique if isinstance(unique, bytes) else bytes(char & 0xFF for char in unique)


def forms_of(unique: bytes) -> list[bytes | tuple[int, ...]]:
    """Return the forms in which a CuPy may want it: bytes, chars as x86 has them, chars as Arm has."""
    return [unique, tuple(memoryview(unique).cast("b")), tuple(unique)]
