"""Who goes after a window, agreed on by everybody's wish: a rank alone, or all together.

A signal to every rank reaches them in different windows. So a rank that is asked to go announces it in one
window and goes at the next: if by then all have been asked, they stop together, with one checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

STAY, ANNOUNCE, GO = 0, 1, 2
_STOP = 10  # and above: let all stop, the rest is the exit code


def stop_with(exit_code: int) -> int:
    """Return the wish that all ranks stop, with this exit code."""
    return _STOP + exit_code


def agreed_stop(wishes: Sequence[int], exit_code_if_all_go: int) -> int | None:
    """Return the exit code with which all ranks stop after this window; None: they go on.

    Args:
        wishes: every rank's.
        exit_code_if_all_go: with which they stop where each was asked to go.

    Returns:
        The largest exit code that a rank wishes for.

    Example:
        >>> [agreed_stop(wishes, 143) for wishes in ([STAY, stop_with(0)], [ANNOUNCE, GO], [STAY, GO])]
        [0, 143, None]
    """
    stops = [wish - _STOP for wish in wishes if wish >= _STOP]
    if stops:
        return max(stops)
    return exit_code_if_all_go if all(wish != STAY for wish in wishes) else None


def leavers(wishes: Sequence[int]) -> list[int]:
    """Return the ranks that leave after this window while others stay."""
    return [rank for rank, wish in enumerate(wishes) if wish == GO]
