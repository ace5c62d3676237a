"""What the ranks tell each other at a window's end: one row of float64 each, one all-gather.

Numbers first, then truths (which parameters have a gradient, which buffers changed, whether they are on a
GPU, ...) as the bits of whole numbers, each small enough for a float64 to hold exactly.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from elche.comm.base import all_gather_bytes
from elche.errors import CommError, ElcheError, MismatchError, NonFiniteError, RankError
from elche.policy.ledger import NUM_FIELDS, SlotReport
from elche.policy.membership import KINDS, Knock
from elche.world import World

FAILED, LEAVING = 1.0, 2.0  # intents of a rank that does not go on; its reason follows in a second exchange

WORD_BITS = 48  # a float64 holds whole numbers up to 53 bits
WORD_MASK = 2**WORD_BITS - 1


class Row(NamedTuple):
    """One rank's word.

    Attributes:
        window: number of the window it closes; equal on all ranks unless something is very wrong.
        epoch: the epoch it goes through, which `set_epoch` on one rank only would make unequal.
        told: updates that `step()` told its script of: not those of windows in which it had no batch.
        settings: hash of the optimizer's hyperparameters, which the script's schedulers move.
        sync_ms: what the last window's reduce and agreement took here.
        weight: total weight of its batches that count.
        counted: samples in them.
        skipped: how many of its batches were left out as not finite.
        intent: 0, FAILED or LEAVING.
        wish: whether it would like to go after this window, alone or all together, see `policy/wishes.py`.
        wanted: how many ranks it was told there shall be.
        knocker: process that it heard knocking; -1: none.
        knock: what that process said, its kind and slot in one number.
        measured: what it measured.
    """

    window: int
    epoch: int = 0
    told: int = 0
    settings: int = 0
    sync_ms: float = 0.0
    weight: float = 0.0
    counted: int = 0
    skipped: int = 0
    intent: float = 0.0
    wish: int = 0
    wanted: int = 0
    knocker: int = -1
    knock: int = 0
    measured: SlotReport = SlotReport()

    def heard(self) -> Knock | None:
        """Return the knock that it heard."""
        slot, kind = divmod(self.knock, len(KINDS))
        return None if self.knocker < 0 else Knock(self.knocker, KINDS[kind], slot - 1)

    def hearing(self, knock: Knock | None) -> Row:
        """Return this row with a knock in it."""
        if knock is None:
            return self._replace(knocker=-1, knock=0)
        number = (knock.slot + 1) * len(KINDS) + KINDS.index(knock.kind)
        return self._replace(knocker=knock.process, knock=number)


HEAD = [float if isinstance(default, float) else int for default in (0, *Row._field_defaults.values())][:-1]
NUM_HEAD = len(HEAD)
NUM_NUMBERS = NUM_HEAD + NUM_FIELDS


@dataclass(frozen=True)
class Met:
    """What the ranks told each other in one exchange.

    Attributes:
        rows: every rank's word.
        slots: every rank's slot.
        present: by parameter, whether some rank has a gradient.
        changed: by buffer, whether it changed on some rank.
        some_on_gpu: whether some rank has its gradients on a GPU.
        stands: whether the sums that were begun early stand on all ranks.
        generation: of these ranks.
    """

    rows: list[Row]
    slots: list[int]
    present: list[bool]
    changed: list[bool]
    some_on_gpu: bool
    stands: bool
    generation: int

    @property
    def moved(self) -> list[bool]:
        """Whether each rank had a batch."""
        return [row.measured.steps > 0 for row in self.rows]

    def by_slot(self, num_slots: int) -> list[Row]:
        """Return a row for each slot; that of an empty one is blank."""
        rows = dict(zip(self.slots, self.rows, strict=True))
        return [rows.get(slot, Row(self.rows[0].window)) for slot in range(num_slots)]


class Exchange:
    """The ranks' meeting at each window's end, and how one that cannot go on ends it for all.

    Attributes:
        broken: why no window can be closed any more; None while all is well.
    """

    broken: ElcheError | None

    def __init__(self, world: World, num_truths: int) -> None:
        """Exchange words with the ranks of `world`, each with `num_truths` truths."""
        self._world, self._num_truths = world, num_truths
        self.broken = None

    def check(self) -> None:
        """Raise again what ended the exchange."""
        if self.broken is not None:
            raise self.broken

    def meet(self, row: Row, truths: Sequence[bool]) -> tuple[list[Row], list[bool]]:
        """Tell this rank's word and hear everybody's; collective.

        Args:
            row: this rank's numbers.
            truths: this rank's truths, as many on every rank.

        Returns:
            Every rank's row, and truth by truth whether some rank said so.

        Raises:
            RankError: some rank cannot go on; on all ranks, with every such rank's reason.
            MismatchError: the ranks close different windows; on all ranks.
            CommError: some rank is lost or leaves, and the others can go on without it.
        """
        rows, somewhere = unpack(self._world.comm.all_gather(pack(row, truths)), len(truths))
        self._part_with([rank for rank, row in enumerate(rows) if row.intent == LEAVING])
        self._hear_reasons(rows)
        if len({(row.window, row.epoch) for row in rows}) > 1:
            windows, epochs = [row.window for row in rows], [row.epoch for row in rows]
            self.broken = MismatchError(
                f"the ranks are in different windows {windows} or epochs {epochs}; set_epoch() must be told "
                "the same number on all ranks"
            )
            raise self.broken
        return rows, somewhere

    def fail(self, error: ElcheError, window: int) -> NoReturn:
        """Raise `error` here and the like on every rank, at the exchange the others come to next.

        Args:
            error: why this rank cannot go on.
            window: the window it is in.

        Raises:
            ElcheError: always.
        """
        self.broken = error
        if self._world.comm.size > 1:
            failed = Row(window, intent=FAILED)
            try:
                self._world.comm.all_gather(pack(failed, [False] * self._num_truths))
                self._hear_reasons([failed], error)
            except CommError as silence:
                raise error from silence
        raise error

    def leave(self, window: int) -> bool:
        """Part from the others: where all part, in silence; else those that wait for this rank hear of it.

        Args:
            window: the window it would have come to.

        Returns:
            Whether all parted together.

        Raises:
            CommError: some rank is lost, and must not keep the others from parting.
        """
        if self.broken is not None or self._world.comm.size == 1:
            return self.broken is None
        parting = Row(window, intent=LEAVING)
        try:
            words_wn = self._world.comm.all_gather(pack(parting, [False] * self._num_truths))
            rows, _ = unpack(words_wn, self._num_truths)
            together = all(row.intent == LEAVING for row in rows)
            if not together and self._world.group is None:
                self._hear_reasons(rows, RankError(f"left before window {window} was closed"))
        except RankError as error:  # those who waited know now
            self.broken = error
            return False
        except CommError as error:
            if self._world.group is not None:
                raise
            self.broken = error  # nobody waits
            return False
        return together

    def _part_with(self, ranks: list[int]) -> None:
        """Where others can go on without those that leave, the roll is called."""
        if ranks and self._world.group is not None:
            self._world.group.note_leaving([self._world.group.view.processes[rank] for rank in ranks])
            raise CommError(f"ranks {ranks} leave")

    def _hear_reasons(self, rows: Sequence[Row], mine: ElcheError | None = None) -> None:
        """A rank that does not go on ends all: every rank hears each such rank's reason."""
        if any(row.intent != 0.0 for row in rows):
            word = json.dumps([type(mine).__name__, str(mine)] if mine is not None else None)
            words = [json.loads(text) for text in all_gather_bytes(self._world.comm, word.encode())]
            self.broken = _everybodys_error(words)
            raise self.broken from mine


def pack(row: Row, truths: Sequence[bool]) -> NDArray[np.float64]:
    """Return a row as the array that travels."""
    return np.array([*row[:NUM_HEAD], *row.measured, *_words_of(tuple(truths))], np.float64)


def unpack(words_wn: NDArray[np.float64], num_truths: int) -> tuple[list[Row], list[bool]]:
    """Return every rank's row and, truth by truth, whether some rank said so."""
    rows, union = [], [0] * num_words(num_truths)
    for values in words_wn.tolist():
        head = [make(value) for make, value in zip(HEAD, values[:NUM_HEAD], strict=True)]
        rows.append(Row(*head, SlotReport.from_row(values[NUM_HEAD:NUM_NUMBERS])))  # type: ignore[arg-type, call-arg]
        union = [word | int(said) for word, said in zip(union, values[NUM_NUMBERS:], strict=True)]
    return rows, list(_truths_of(tuple(union), num_truths))


def num_words(num_truths: int) -> int:
    """How many float64 words hold that many bits."""
    return -(-num_truths // WORD_BITS)


# Both change rarely: in most windows every parameter has a gradient, and the same buffers change.


@lru_cache(maxsize=64)
def _words_of(truths: tuple[bool, ...]) -> list[int]:
    bits = sum(1 << index for index, truth in enumerate(truths) if truth)
    return [bits >> (WORD_BITS * word) & WORD_MASK for word in range(num_words(len(truths)))]


@lru_cache(maxsize=64)
def _truths_of(words: tuple[int, ...], num_truths: int) -> list[bool]:
    bits = sum(word << (WORD_BITS * index) for index, word in enumerate(words))
    return [bool(bits >> index & 1) for index in range(num_truths)]


def _everybodys_error(words: Sequence[list[str] | None]) -> RankError:
    """One error for all ranks, with the reason of each rank that had one."""
    reasons = [(rank, *word) for rank, word in enumerate(words) if word is not None]
    text = "; ".join(f"rank {rank}: {reason}" for rank, _, reason in reasons)
    nonfinite = all(kind == NonFiniteError.__name__ for _, kind, _ in reasons)
    return NonFiniteError(text) if nonfinite else RankError(text)
