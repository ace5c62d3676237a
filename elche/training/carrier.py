"""What a TorchState asks of the engine: `elche.elastic.trainer.Trainer`, said of the engine's parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elche.elastic.snapshots import Snapshots
from elche.elastic.trainer import Carried
from elche.training import refusals
from elche.training.job import Job
from elche.training.journal import Journal
from elche.training.plan import Plan
from elche.training.survival import Survival
from elche.world import World

if TYPE_CHECKING:
    from weakref import ReferenceType

    from elche.training.loader import DataLoader


class Carrier:
    """The engine as its TorchState sees it."""

    job: Job
    survival: Survival
    _world: World
    _journal: Journal
    _snapshots: Snapshots
    _first_epoch = 0
    _taken: dict[str, Any] | None = None
    _loader: ReferenceType[DataLoader]  # PyTorch's workers end late where a loader is in a cycle

    @property
    def plan(self) -> Plan | None:
        """The current window's; None between epochs."""
        return self.job.plan

    @property
    def num_updates(self) -> int:
        """Committed updates so far."""
        return self.job.num_updates

    @property
    def extras(self) -> dict[str, Carried]:
        """What travels beside model, optimizer and the engine's own, by name."""
        return self.survival.snapshot.extras

    @property
    def stopping(self) -> bool:
        """Whether all ranks have agreed to stop: there are no more batches."""
        return self.survival.stopping.stopping

    @property
    def exit_code(self) -> int:
        """With which a stopped job ends."""
        return self.survival.stopping.exit_code

    @property
    def generation(self) -> int:
        """Number of the view."""
        return 0 if self._world.group is None else self._world.group.view.generation

    @property
    def num_windows(self) -> int:
        """Committed windows so far."""
        return self.job.window

    @property
    def reset_callbacks(self) -> list[Callable[[], None]]:
        """Called, in order, after ranks were lost or came."""
        return self.survival.reset_callbacks

    @property
    def on_stop(self) -> Callable[[], None] | None:
        """Called when all ranks stop after the same window."""
        return self.survival.stopping.on_stop

    @on_stop.setter
    def on_stop(self, write: Callable[[], None] | None) -> None:
        self.survival.stopping.on_stop = write

    def next_epoch(self) -> int | None:
        """Return the epoch to train, after entering where this process is outside; None: there is none."""
        loader = self._loader()
        assert loader is not None
        loader.epoch = max(loader.epoch, self.take_up())
        epoch = self.survival.next_epoch(loader.epoch)
        if epoch is not None:
            loader.epoch = epoch
        return epoch

    def take_up(self) -> int:
        """Return the first epoch that is not trained yet; where the job was started again, not before it is.

        A newcomer has no choice: it goes on where the others are.
        """
        if self._world.inside and not self.survival.entrance.has_entered:
            restore = self.survival.snapshot.resume
            state = self._snapshots.take_up(self._world.start_up, self.job.window, restore)
            if state is not None:
                self._taken, self._first_epoch = state, self.job.next_epoch
                self._journal.resume(state["log"])
        return self._first_epoch

    def is_past(self, epoch: int) -> bool:
        """Return whether a job that was started again has this epoch behind it.

        In the first that it has not it takes its state once more: a plain loop over epochs has gone through
        those before, which were empty, and stepped its schedulers.
        """
        if epoch < self.take_up():
            return True
        if self._taken is not None:
            self.survival.snapshot.resume(self._taken)
            self._taken = None
        return False

    def keep_snapshot(self) -> None:
        """Write the state to this host's memory, if that is due: before the first batch of a window."""
        self._snapshots.keep(
            self._world.comm, self.job.window, lambda: {**self.capture(), "log": self._journal.pending()}
        )

    def capture(self) -> dict[str, Any]:
        """Return everything as of the last committed window; shares memory with it."""
        return self.survival.snapshot.capture()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a captured state, on any number of ranks; before training or between epochs."""
        if self.job.in_epoch and not self.survival.is_over:
            raise refusals.restored_in_epoch(self.job.epoch)
        self.survival.snapshot.resume(state)
        loader = self._loader()
        assert loader is not None
        loader.epoch = self.job.next_epoch

    def request_stop(self, reason: str, exit_code: int) -> None:
        """Ask all ranks to stop after the same window."""
        self.survival.stopping.request(reason, exit_code)

    def is_writer(self) -> bool:
        """Return whether this rank is the one that writes files."""
        return self._world.inside and self._world.rank == 0
