"""Who does how many batches next: the controller, its detectors and the living slots, together.

Replicated: every rank feeds the same numbers and gets the same answer, so nobody has to tell anybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elche.config import Cadence
from elche.errors import ConfigError
from elche.policy.cadence import ElChe, WindowReport
from elche.policy.guards import Verdict
from elche.policy.lr_meta import LrMetaController


class Schedule:
    """The cadence of a job: counts for the next window, learnt from the reports of the last ones.

    Attributes:
        controller: the El Che controller; conformant, also about slots that are dead.
        living: by slot, whether somebody holds it. Dead slots get no batches.
    """

    controller: ElChe
    living: list[bool]

    def __init__(
        self, cadence: Cadence, world_size: int, *, gpus: Sequence[Mapping[str, int]] | None = None
    ) -> None:
        """Start uncalibrated: `anchor` batches for every slot, or the given speed ratio.

        Args:
            cadence: the user's settings.
            world_size: number of slots.
            gpus: by slot, what the device probe told of its GPU; None where some slot has none.

        Raises:
            ConfigError: the speed ratio names a slot that does not exist.
        """
        if cadence.speed_ratio is not None and cadence.speed_ratio[0] >= world_size:
            raise ConfigError(
                f"speed_ratio's slow slot must be at most {world_size - 1}, got {cadence.speed_ratio[0]}"
            )
        self._cadence = cadence
        self.living = [True] * world_size
        self.controller = ElChe(
            world_size,
            cadence.anchor_batches,
            overhead_target=cadence.overhead_target,
            window_growth_applicable=cadence.anchor_moves,
            max_anchor=cadence.max_anchor_batches,
            min_anchor=cadence.min_anchor,
            max_batch_diff=cadence.max_batch_diff,
            speed_ratio=cadence.speed_ratio,
            device_indices=list(range(world_size)) if gpus else None,
            gpus=list(gpus) if gpus else None,
        )
        # Where the anchor is fixed, so are the samples per update: a cliff of the learning rate must not
        # halve them behind the user's back.
        self._meta = LrMetaController() if cadence.meta_controller and cadence.anchor_moves else None

    def counts(self) -> list[int]:
        """Return the batches of a full window, by slot; 0 for the dead."""
        anchor = self.controller.anchor
        if self._cadence.policy == "sync":
            return [anchor if lives else 0 for lives in self.living]
        return [
            count if lives else 0
            for count, lives in zip(self.controller.batch_counts, self.living, strict=True)
        ]

    def ms_per_batch(self) -> list[float]:
        """Return the smoothed speed of each slot in ms per batch; 0 where it is unknown."""
        return [ms or 0.0 for ms in self.controller.smoothed_ms_per_batch]

    def observe(self, report: WindowReport, lr: float) -> Verdict:
        """Learn from a committed window.

        Args:
            report: what the slots measured.
            lr: the optimizer's learning rate.

        Returns:
            The verdict that was applied last: the meta-controller's comes before the guard's.
        """
        self.controller.report_window(report)
        verdict = Verdict.stable(relax_up=self._cadence.relax_up)
        if self._meta is not None:
            factor = self._meta.observe(lr, self.controller.anchor, verdict, self.controller.phase)
            if factor is not None:
                self.controller.apply_verdict(Verdict.nudge_down(factor))
        self.controller.apply_verdict(verdict)
        return verdict

    def state_dict(self) -> dict[str, Any]:
        """Return the whole replicated state as plain values."""
        meta = self._meta.state_dict() if self._meta is not None else None
        return {"controller": self.controller.state_dict(), "living": list(self.living), "meta": meta}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue as the one whose state it is.

        Args:
            state: what `state_dict` returned, with the same settings.
        """
        self.controller.load_state_dict(state["controller"])
        self.living = list(state["living"])
        if self._meta is not None:
            self._meta.load_state_dict(state["meta"])
