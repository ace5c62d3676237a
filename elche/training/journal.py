"""What the engine did, as events in the log; nothing is made where nobody reads."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Sequence
from typing import Any

from elche import events
from elche.policy.dispatch import Range
from elche.policy.guards import Verdict
from elche.policy.schedule import Schedule
from elche.policy.weights import total_mass
from elche.training.exchange import Row
from elche.training.plan import Plan
from elche.world import World

PACKAGES = ("elche", "torch", "numpy", "mpi4py", "triton")


class Journal:
    """Tells the event log what happened on this rank's side."""

    def __init__(self, world: World, schedule: Schedule) -> None:
        self._world, self._schedule = world, schedule

    def run(self, settings: dict[str, Any]) -> None:
        """Tell of a job that begins to train with these settings."""
        self._world.log.write(
            events.Run(
                **self._world.stamp(),
                world=self._world.comm.size,
                config=settings,
                versions={name: version for name in PACKAGES if (version := _version(name)) is not None},
                devices=[device["name"] for device in self._world.devices],
                backend=self._world.backend,
            )
        )

    def window(
        self, plan: Plan, rows: Sequence[Row], sync_ms: float, lr: float, verdict: Verdict, *, updated: bool
    ) -> None:
        """Tell of a committed window.

        Args:
            plan: what was to be done.
            rows: what each rank told of it.
            sync_ms: how long its reduce and agreement took here.
            lr: the learning rate of its update.
            verdict: what the detectors said.
            updated: whether it changed the parameters.
        """
        if not self._world.log.active:
            return
        measured = [row.measured for row in rows]
        controller = self._schedule.controller
        self._world.log.write(
            events.Window(
                **self._world.stamp(),
                epoch=plan.epoch,
                window=plan.index,
                slots=list(range(len(rows))),
                counts=list(plan.counts),
                batches=[report.steps for report in measured],
                samples=[report.samples for report in measured],
                skipped=[row.skipped for row in rows],
                ranges=[[slot, *run] for slot, batches in enumerate(plan.ranges) for run in _runs(batches)],
                weight_total=total_mass(row.weight for row in rows),
                loss=_mean_loss(rows),
                anchor=controller.anchor,
                anchor_rank=controller.anchor_rank,
                phase=controller.phase.value,
                ms_per_batch=self._schedule.ms_per_batch(),
                wall_ms=[report.wall_ms for report in measured],
                sync_ms=sync_ms,
                fill_ms=[report.fill_ms for report in measured],
                verdict=verdict.kind,
                divergence=None,
                lr=lr,
                updated=updated,
            )
        )

    def skipped(self, batches: Sequence[int]) -> None:
        """Warn of batches, by rank, that were left out as not finite; Python shows it once."""
        if self._world.comm.rank == 0:
            warnings.warn(
                "batches with inf or nan in their gradients were left out of the mean (nonfinite='skip'; the "
                f"event log counts them), by rank: {list(batches)}",
                RuntimeWarning,
                stacklevel=2,
            )

    def epoch(self, epoch: int, num_windows: int, num_updates: int) -> None:
        """Tell of an epoch whose every sample is in a committed window."""
        self._world.log.write(
            events.Epoch(**self._world.stamp(), epoch=epoch, windows=num_windows, num_updates=num_updates)
        )

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
        self._world.log.write(
            events.Resync(
                **self._world.stamp(), window=window, differing_ranks=ranks, same_devices=len(kinds) == 1
            )
        )


def _mean_loss(rows: Sequence[Row]) -> float | None:
    """Mean over the samples whose loss was told and finite."""
    samples = sum(row.measured.loss_samples for row in rows)
    return sum(row.measured.loss_sum for row in rows) / samples if samples else None


def _runs(batches: Sequence[Range]) -> list[Range]:
    """Batches that follow each other become one range; their order stays."""
    runs: list[Range] = []
    for start, stop in batches:
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], stop)
        else:
            runs.append((start, stop))
    return runs


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
