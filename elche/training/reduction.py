"""Three collectives at a window's end: exchange of words, sum of gradients and buffers, agreement."""

from __future__ import annotations

import time

from elche.errors import CommError, UsageError
from elche.training import streams
from elche.training.buffers import Buffers
from elche.training.early import Early
from elche.training.exchange import Exchange, Met, Row
from elche.training.gradients import Gradients
from elche.training.reducers import Reducers
from elche.training.replicas import Replicas
from elche.training.wire import Wire
from elche.world import World


class Reduction:
    """Meets the others; nothing that a rank has accumulated is touched before the commit.

    Attributes:
        reduced: whether the sum of the window under way is here, so that it may count as it is.
        sync_ms: what the last one took, from when everybody had arrived.
    """

    reduced: bool
    sync_ms: float

    def __init__(
        self,
        world: World,
        exchange: Exchange,
        gradients: Gradients,
        buffers: Buffers,
        replicas: Replicas,
    ) -> None:
        """Join the parts.

        Args:
            world: the ranks.
            exchange: of words.
            gradients: this rank's.
            buffers: the model's.
            replicas: agrees on hyperparameters.
        """
        self._world, self._exchange = world, exchange
        self._gradients, self._buffers, self._replicas = gradients, buffers, replicas
        self._reducers = Reducers.of(world)
        self._wire = None if gradients.wire.dtype is None else Wire(gradients.wire)
        self._early = Early(gradients)
        self.reduced, self.sync_ms = False, 0.0

    def begin_early(self, weight: float) -> None:
        """Begin to sum in the batch that comes, this rank's last of a window, where that makes sense.

        Args:
            weight: the batch's.
        """
        reducer = self._reducers.at_hand(self)
        if reducer is not None and self._reducers.is_sole(self) and streams.is_gpu(self._gradients.device):
            self._early.watch(weight, reducer.begin)

    def meet(self, row: Row) -> Met:
        """Exchange words: every rank's row, which parameters have a gradient, which buffers changed.

        Args:
            row: this rank's.

        Returns:
            What all have told.

        Raises:
            CommError: somebody is lost, or leaves.
        """
        self.reduced = False
        world, present = self._world, self._gradients.present
        on_gpu = streams.is_gpu(self._gradients.device)
        try:
            stands = self._begin_rest()
            own = [*present, *self._changed_buffers(row.window), on_gpu, not stands]
            rows, (*truths, some_on_gpu, some_fell) = self._exchange.meet(row, own)
        except BaseException:  # what was begun would wait for the others on the device
            self.retire()
            raise
        generation = 0 if world.group is None else world.group.view.generation
        present, changed = truths[: len(present)], truths[len(present) :]
        return Met(rows, world.slots, present, changed, some_on_gpu, not some_fell, generation)

    def reduce(self, met: Met, num_updates: int) -> None:
        """Sum over the ranks, out of place, and agree that all have.

        Args:
            met: what all have told.
            num_updates: updates so far.

        Raises:
            CommError: somebody is lost.
        """
        buckets = self._gradients.buckets
        reducer = self._reducers.prepare(self, buckets, self._wire, some_on_gpu=met.some_on_gpu)
        begun = time.perf_counter()
        settings, told = [row.settings for row in met.rows], [row.told for row in met.rows]
        self._replicas.agree_on_settings(settings, told, num_updates)
        rank, comm = self._world.rank, self._world.comm
        sends, sums = self._buffers.pack(met.changed, met.moved, rank)
        reducer.all_reduce(buckets, sends, sums, stands=met.stands)
        self.reduced = True
        if not comm.agree(True):
            raise CommError("the window was not agreed on by all ranks")
        self.sync_ms = 1e3 * (time.perf_counter() - begun)

    def settle(self, *, updated: bool) -> None:
        """Note that the window counts as it was reduced.

        Args:
            updated: whether its sum was used; else no batch counted.
        """
        self.reduced = False
        self._early.forget()
        if self._wire is not None:
            self._wire.settle(is_used=updated)

    def drop(self) -> None:
        """Forget the window under way, and what is owed to the next: the others go on without this rank."""
        self._gradients.begin()
        if self._wire is not None:
            self._wire.forget()

    def retire(self) -> None:
        """Let nothing go on that was begun with the ranks there were; does not wait."""
        self._early.forget()
        self._reducers.retire()

    def _begin_rest(self) -> bool:
        """Begin with all that was not begun early; return whether what was stands on this rank."""
        buckets = self._gradients.to_reduce()  # once all have met, they may be read where they lie
        reducer = self._reducers.at_hand(self)
        if reducer is None:
            return True
        stands = self._early.stands()
        reducer.begin_rest(buckets, stands=stands)
        return stands

    def _changed_buffers(self, window: int) -> list[bool]:
        """Return, by buffer, whether it changed; one that cannot be averaged ends the job for all."""
        try:
            return self._buffers.changed()
        except UsageError as error:
            self._exchange.fail(error, window)
