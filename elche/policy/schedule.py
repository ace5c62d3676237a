"""Who does how many batches next: the controller, its detectors and the living slots, together.

Replicated: every rank feeds the same numbers and gets the same answer, so nobody has to tell anybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elche.config import Cadence
from elche.errors import ConfigError, UsageError
from elche.policy import devices
from elche.policy.cadence import ElChe, WindowReport
from elche.policy.checks import one_per_slot, slot_of
from elche.policy.guards import Verdict
from elche.policy.lr_meta import LrMetaController
from elche.policy.membership import SlotState
from elche.policy.trust import TRUST_WINDOW_CAP


class Schedule:
    """The cadence of a job: counts for the next window, learnt from the reports of the last ones.

    A slot without a process reports zeros. For five windows its speed is remembered, for whoever takes it;
    then the controller's death exception clears it, and it is vacant even if it was reserved.

    Attributes:
        controller: the El Che controller; conformant, also about slots that are dead.
        died: slots whose death exception fired at the last `observe`. One that lives never does: where its
            share was zero for long, it only has its speed forgotten.
    """

    controller: ElChe
    died: tuple[int, ...]

    def __init__(
        self,
        cadence: Cadence,
        world_size: int,
        *,
        gpus: Sequence[Mapping[str, int]] | None = None,
        living: Sequence[bool] | None = None,
    ) -> None:
        """Start uncalibrated: `anchor` batches for every slot, or the given speed ratio.

        Args:
            cadence: the user's settings.
            world_size: number of slots, those that may be used later included.
            gpus: of the living slots, what the device probe told of their GPUs, each with its slot as
                `index`; None where some has none.
            living: by slot, whether a process holds it at first; None: all.

        Raises:
            ConfigError: the speed ratio names a slot that nobody holds, or `living` is of another length.
        """
        living = [True] * world_size if living is None else living
        one_per_slot("living", living, world_size)
        held = [slot for slot, lives in enumerate(living) if lives]
        slow = cadence.speed_ratio[0] if cadence.speed_ratio else None
        if slow is not None and slow not in held:
            raise ConfigError(f"speed_ratio's slot must be held at first, at most {held[-1]}, got {slow}")
        self._cadence = cadence
        self._states = [SlotState.LIVING if lives else SlotState.UNUSED for lives in living]
        self.died = ()
        self._dead = {slot for slot, lives in enumerate(living) if not lives}  # there was nobody to die
        slowest = devices.slowest_slot(held, gpus) if slow is None else None
        self.controller = ElChe(
            world_size,
            cadence.anchor_batches,
            overhead_target=cadence.overhead_target,
            window_growth_applicable=cadence.anchor_moves,
            max_anchor=cadence.max_anchor_batches,
            min_anchor=cadence.min_anchor,
            max_batch_diff=cadence.max_batch_diff,
            speed_ratio=cadence.speed_ratio,
            initial_anchor=None if slowest is None else held[slowest],
        )
        # Where the anchor is fixed, so are the samples per update: a cliff of the learning rate must not
        # halve them behind the user's back.
        self._meta = LrMetaController() if cadence.meta_controller and cadence.anchor_moves else None

    # Who holds which slot.

    @property
    def living(self) -> list[bool]:
        """By slot, whether a process holds it. Others get no batches."""
        return [state is SlotState.LIVING for state in self._states]

    def slot_states(self) -> list[SlotState]:
        """Return by slot what it is to those who would take it."""
        return list(self._states)

    def lose(self, slot: int, *, reserved: bool) -> None:
        """Let a slot stand empty; a reserved one that is lost again is vacant.

        Args:
            slot: which.
            reserved: whether its process may come back to it, until the death exception.

        Raises:
            UsageError: nobody holds it, nor is it reserved.
        """
        state = self._states[slot_of("slot", slot, len(self._states))]
        if state in (SlotState.VACANT, SlotState.UNUSED):
            raise UsageError(f"lose: slot {slot} is {state.value} already")
        self._states[slot] = SlotState.RESERVED if reserved else SlotState.VACANT

    def fill(self, slot: int) -> None:
        """Let a process hold an empty slot; it gets the slot's old share where that is still remembered.

        Args:
            slot: which.

        Raises:
            UsageError: another holds it.
        """
        if self._states[slot_of("slot", slot, len(self._states))] is SlotState.LIVING:
            raise UsageError(f"fill: slot {slot} is living already")
        self._states[slot] = SlotState.LIVING
        self._dead.discard(slot)

    # Who does how much.

    def counts(self) -> list[int]:
        """Return the batches of a full window, by slot; 0 for the dead."""
        anchor = self.controller.anchor
        if self._cadence.policy == "sync":
            return [anchor if lives else 0 for lives in self.living]
        counts = self.controller.batch_counts
        return [count if lives else 0 for count, lives in zip(counts, self.living, strict=True)]

    def ms_per_batch(self) -> list[float]:
        """Return the smoothed speed of each slot in ms per batch; 0 where it is unknown."""
        return [ms or 0.0 for ms in self.controller.smoothed_ms_per_batch]

    def ms_to_deal_by(self) -> list[float]:
        """Return the speeds that dispatch may go by; none in lockstep, which is to repeat bit for bit."""
        return [0.0] * len(self._states) if self._cadence.policy == "sync" else self.ms_per_batch()

    def observe(self, report: WindowReport, lr: float) -> Verdict:
        """Learn from a committed window.

        Args:
            report: what the slots measured.
            lr: the optimizer's learning rate.

        Returns:
            The verdict that was applied last: the meta-controller's comes before the guard's.
        """
        self.controller.report_window(report)
        self._vacate()
        verdict = Verdict.stable(relax_up=self._cadence.relax_up)
        if self._meta is not None:
            factor = self._meta.observe(lr, self.controller.anchor, verdict, self.controller.phase)
            if factor is not None:
                self.controller.apply_verdict(Verdict.nudge_down(factor))
        self.controller.apply_verdict(verdict)
        return verdict

    def _vacate(self) -> None:
        """Let go of the slots without a process that the controller has given up."""
        missed = self.controller.trust.zero_reports
        empty = [slot for slot, lives in enumerate(self.living) if not lives]
        given_up = [slot for slot in empty if missed[slot] >= TRUST_WINDOW_CAP]
        self.died = tuple(slot for slot in given_up if slot not in self._dead)
        self._dead.update(self.died)
        for slot in self.died:
            self._states[slot] = SlotState.VACANT

    def state_dict(self) -> dict[str, Any]:
        """Return the whole replicated state as plain values."""
        return {
            "controller": self.controller.state_dict(),
            "slots": [state.value for state in self._states],
            "dead": sorted(self._dead),
            "died": list(self.died),
            "meta": self._meta.state_dict() if self._meta is not None else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue as the one whose state it is.

        Args:
            state: what `state_dict` returned, with the same settings.
        """
        self.controller.load_state_dict(state["controller"])
        self._states = [SlotState(value) for value in state["slots"]]
        self._dead, self.died = set(state["dead"]), tuple(state["died"])
        if self._meta is not None:
            self._meta.load_state_dict(state["meta"])
