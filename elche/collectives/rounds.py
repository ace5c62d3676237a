"""One round: every rank tells its news and hears those of all; short ones in one message."""

from __future__ import annotations

import numpy as np

from elche.collectives.requests import News, decode, encode
from elche.comm.base import Buffer, Comm

LENGTH_BYTES = 8
FIRST_BYTES = 1024 - LENGTH_BYTES  # of news, in the message that every round has


def exchange(comm: Comm, news: News) -> list[News]:
    """Return every rank's news, in rank order; collective.

    Args:
        comm: the ranks.
        news: this rank's.

    Returns:
        One for each rank.
    """
    mine = encode(news)
    first = _row(LENGTH_BYTES + FIRST_BYTES, np.int64(len(mine)).tobytes() + mine[:FIRST_BYTES])
    rows = comm.all_gather(first)
    sizes = rows[:, :LENGTH_BYTES].copy().view(np.int64)[:, 0].tolist()
    if max(sizes) > FIRST_BYTES:
        rest = _row(max(sizes) - FIRST_BYTES, mine[FIRST_BYTES:])
        rows = np.concatenate([rows, comm.all_gather(rest)], axis=1)
    texts = [row[LENGTH_BYTES : LENGTH_BYTES + size].tobytes() for row, size in zip(rows, sizes, strict=True)]
    return [news if text == mine else decode(text) for text in texts]


def _row(size: int, text: bytes) -> Buffer:
    row = np.zeros(size, np.uint8)
    row[: len(text)] = np.frombuffer(text, np.uint8)
    return row
