"""What the engine did, as events in the log; nothing is made where nobody reads."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Sequence
from typing import Any

from elche import events
from elche.comm.view_chain import Lost
from elche.policy.dispatch import Range
from elche.policy.guards import Verdict
from elche.policy.pieces import joined
from elche.policy.weights import total_mass
from elche.training.exchange import Row
from elche.training.job import Job
from elche.training.plan import Plan
from elche.world import World

PACKAGES = ("elche", "torch", "numpy", "mpi4py", "triton")


class Journal:
    """Tells the event log what happened.

    A window's line is written when the next exchange has shown that all ranks committed it.
    """

    def __init__(self, world: World, job: Job) -> None:
        self._world, self._job = world, job

    def run(self, settings: dict[str, Any]) -> None:
        """Tell of a job that begins to train with these settings; all ranks have come here."""
        self._world.log.confirm()
        self._world.log.write(
            events.Run(
                **self._world.stamp(),
                world=self._world.size,
                config=settings,
                versions={name: version for name in PACKAGES if (version := _version(name)) is not None},
                devices=[device["name"] for device in self._world.devices],
                backend=self._world.backend,
            )
        )

    def take_over(self, rank: int | None = None) -> None:
        """Go on with the log where the one who wrote it is lost; the lowest `rank` does, None: its own."""
        self._world.log.take_over(self._world.rank if rank is None else rank)

    def hand_over(self) -> None:
        """Leave the log to the others: what this rank has kept, they have written before it is back."""
        self._world.log.close()

    def pending(self) -> list[tuple[int, events.Event]]:
        """Return what is not written yet, for a snapshot."""
        return self._world.log.pending()

    def resume(self, pending: list[tuple[int, events.Event]]) -> None:
        """Tell that this job goes on from a snapshot: later windows of the log are trained again.

        Args:
            pending: what was not written yet.
        """
        job = self._job
        self._world.log.resume(pending)
        self._world.log.write(events.Resume(**self._world.stamp(), epoch=job.next_epoch, window=job.window))

    def confirm(self) -> None:
        """Write what is pending: all ranks have committed it."""
        self._world.log.confirm()

    def window(
        self, plan: Plan, rows: Sequence[Row], sync_ms: float, verdict: Verdict, *, updated: bool
    ) -> None:
        """Tell of a committed window.

        Args:
            plan: what was to be done.
            rows: by slot, what was told of it.
            sync_ms: how long its reduce and agreement took here.
            verdict: what the detectors said.
            updated: whether it changed the parameters.
        """
        if not self._world.log.wanted:
            return
        measured = [row.measured for row in rows]
        schedule = self._job.schedule
        event = events.Window(
            **self._world.stamp(),
            epoch=plan.epoch,
            window=plan.index,
            slots=list(range(len(rows))),
            counts=list(plan.counts),
            batches=[report.steps for report in measured],
            samples=[report.samples for report in measured],
            skipped=[row.skipped for row in rows],
            ranges=[[slot, *run] for slot, batches in enumerate(plan.ranges) for run in joined(batches)],
            weight_total=total_mass(row.weight for row in rows),
            loss=_mean_loss(rows),
            anchor=schedule.controller.anchor,
            anchor_rank=schedule.controller.anchor_rank,
            phase=schedule.controller.phase.value,
            ms_per_batch=schedule.ms_per_batch(),
            wall_ms=[report.wall_ms for report in measured],
            sync_ms=sync_ms,
            fill_ms=[report.fill_ms for report in measured],
            verdict=verdict.kind,
            divergence=None,
            lr=self._job.lr,
            updated=updated,
        )
        self._world.log.keep(plan.index, event)

    def skipped(self, batches: Sequence[int]) -> None:
        """Warn of batches, by rank, that were left out as not finite; Python shows it once."""
        if self._world.rank == 0:
            warnings.warn(
                "batches with inf or nan in their gradients were left out of the mean (nonfinite='skip'; the "
                f"event log counts them), by rank: {list(batches)}",
                RuntimeWarning,
                stacklevel=2,
            )

    def epoch(self) -> None:
        """Tell of an epoch whose every sample is in a committed window."""
        job = self._job
        if self._world.log.wanted:
            num_windows = job.window - job.epoch_start
            event = events.Epoch(
                **self._world.stamp(), epoch=job.epoch, windows=num_windows, num_updates=job.num_updates
            )
            self._world.log.keep(job.window - 1, event)

    def lost(self, lost: Lost, heal_ms: float, returned: Sequence[Range]) -> None:
        """Tell of a rank that is none any more.

        Args:
            lost: who, and why.
            heal_ms: from when the others noticed until they went on.
            returned: its batches that are dealt again.
        """
        process, slot, cause = lost.loss
        self._world.log.write(
            events.Lost(
                **{**self._world.stamp(), "rank": lost.rank},
                slot=slot,
                process=process,
                cause=cause,
                detect_ms=lost.detect_ms,
                heal_ms=heal_ms,
                returned=[list(run) for run in joined(returned)],
            )
        )
        self._tell_launcher(
            "lost", process=process, slot=slot, cause=cause, heal_ms=heal_ms, batches=len(returned)
        )

    def joined(self, process: int, slot: int, sync_ms: float) -> None:
        """Tell of a process that holds a slot from now on; the job's state took `sync_ms` to reach it."""
        self._world.log.write(
            events.Joined(**self._world.stamp(), process=process, slot=slot, sync_ms=sync_ms)
        )
        # All tell elche-run: the lowest rank may be the newcomer, which does not know.
        self._world.guard.tell({"event": "joined", "process": process, "slot": slot, "sync_ms": sync_ms})

    def slots_dead(self) -> None:
        """Tell of the slots whose speed was forgotten at the last commit."""
        for slot in self._job.schedule.died:
            self._world.log.keep(self._job.window - 1, events.SlotDead(**self._world.stamp(), slot=slot))
            self._tell_launcher("slot_dead", slot=slot)

    def _tell_launcher(self, event: str, **facts: Any) -> None:
        """Let the lowest rank tell elche-run, where that has started the job."""
        if self._world.rank == 0:
            where = {"epoch": self._job.epoch, "window": self._job.window}
            self._world.guard.tell({"event": event, **facts, **where})

    def differed(self, window: int, ranks: list[int]) -> None:
        """Tell of replicas that were not equal after `window` windows, and warn where that is a fault."""
        kinds = {device["name"] for device in self._world.devices}
        if len(kinds) == 1:
            warnings.warn(
                f"after {window} windows the parameters, buffers or optimizer state of ranks {ranks} are not "
                "rank 0's, on equal devices; they were sent again. It is a fault: the script changes them "
                "on some ranks only, or elche has a bug",
                RuntimeWarning,
                stacklevel=2,
            )
        if self._world.log.wanted:
            event = events.Resync(
                **self._world.stamp(), window=window, differing_ranks=ranks, same_devices=len(kinds) == 1
            )
            self._world.log.keep(window - 1, event)


def _mean_loss(rows: Sequence[Row]) -> float | None:
    """Mean over the samples whose loss was told and finite."""
    samples = sum(row.measured.loss_samples for row in rows)
    return sum(row.measured.loss_sum for row in rows) / samples if samples else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
