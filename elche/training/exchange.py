"""What the ranks tell each other at a window's end: one row of float64 each, one all-gather.

Numbers first, then truths (which parameters have a gradient, which buffers changed) packed as bits whose
bytes lie in float64 words and are never computed with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elche.policy.ledger import NUM_FIELDS, SlotReport

FAILED = 1.0  # intent of a rank that cannot go on; its reason follows in a second exchange
HEAD = ("intent", "window", "epoch", "sync_ms", "weight", "skipped")
NUM_NUMBERS = len(HEAD) + NUM_FIELDS


class Row(NamedTuple):
    """One rank's word.

    Attributes:
        intent: 0, or FAILED.
        window: number of the window it closes; equal on all ranks unless something is very wrong.
        epoch: the epoch it goes through, which `set_epoch` on one rank only would make unequal.
        sync_ms: what the last window's reduce and agreement took here.
        weight: total weight of its accumulated batches.
        skipped: how many of its batches were left out as not finite.
        measured: what it measured.
    """

    intent: float
    window: int
    epoch: int
    sync_ms: float
    weight: float
    skipped: int
    measured: SlotReport


def pack(row: Row, truths: Sequence[bool]) -> NDArray[np.float64]:
    """Return a row as the array that travels."""
    head = [*row[:-1], *row.measured.to_row()]
    words = np.zeros(NUM_NUMBERS + num_words(len(truths)))
    words[:NUM_NUMBERS] = head
    bits = np.packbits(np.array(truths, bool))
    words[NUM_NUMBERS:].view(np.uint8)[: len(bits)] = bits
    return words


def unpack(words_wn: NDArray[np.float64], num_truths: int) -> tuple[list[Row], list[bool]]:
    """Return every rank's row and, truth by truth, whether some rank said so."""
    rows = []
    for values in words_wn[:, :NUM_NUMBERS].tolist():
        intent, window, epoch, sync_ms, weight, skipped = values[: len(HEAD)]
        measured = SlotReport.from_row(values[len(HEAD) :])
        rows.append(Row(intent, int(window), int(epoch), sync_ms, weight, int(skipped), measured))
    bits = np.bitwise_or.reduce(np.ascontiguousarray(words_wn[:, NUM_NUMBERS:]).view(np.uint8), axis=0)
    return rows, np.unpackbits(bits, count=num_truths).astype(bool).tolist()


def num_words(num_truths: int) -> int:
    """How many float64 words hold that many bits."""
    return -(-num_truths // 64)
