"""The controller: from measured windows to the next window's batch counts.

The slow slot anchors the cadence: it does `anchor` batches per window, faster slots do proportionally more,
and all meet at one weighted all-reduce. A slot is an index 0..world_size-1 and outlives its process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from elche.policy import balance, devices
from elche.policy.checks import at_least, one_per_slot, slot_of
from elche.policy.counts import BatchCounts
from elche.policy.growth import Growth
from elche.policy.records import ElCheState, Phase, Verdict, WindowReport
from elche.policy.trust import TRUST_WINDOW_CAP, TrustWindows

__all__ = ["ElChe", "ElCheState", "Phase", "WindowReport"]

NUDGE_MIN, NUDGE_MAX = 0.1, 1.0


class ElChe:
    """Give each slot as many batches as it does while the slow slot does `anchor`.

    After each window `report_window` takes the timings and `apply_verdict` a detector's word; `batch_counts`
    is the next window's plan. The same calls give the same plan on every rank.

    Args:
        world_size: number of slots, at least 1.
        anchor: batches of the slow slot per window, at least 1.
        overhead_target: fraction of a window its fixed cost may take, clamped to [0.01, 0.50].
        window_growth_applicable: whether the anchor may grow to meet that target.
        max_anchor: upper bound of the anchor (None: 1000, or `anchor` if larger), lifted to 1.
        min_anchor: lower bound of a grown anchor (None: `anchor`), clamped to [1, max_anchor].
        max_batch_diff: batches by which a count may move per window; also bounds the spread when relaxing.
        speed_ratio: (slow slot, how many times faster the others are), for the first window.
        initial_anchor: slot that anchors until the phase is stable.
        device_indices: per slot its GPU, to pin the slowest by its data sheet.
        gpus: what the device probe returned; None asks the driver.
        max_total_batches: bound of a window's batches; 0 is none.

    Raises:
        ConfigError: (a ValueError) a value is outside its bounds.

    Example:
        >>> controller = ElChe(2, anchor=10)
        >>> controller.report_timing([100.0, 400.0], [10, 10], sync_ms=1.0)
        >>> controller.batch_counts
        [40, 10]
    """

    def __init__(
        self,
        world_size: int,
        anchor: int,
        *,
        overhead_target: float = 0.05,
        window_growth_applicable: bool = True,
        max_anchor: int | None = None,
        min_anchor: int | None = None,
        max_batch_diff: int | None = None,
        speed_ratio: tuple[int, float] | None = None,
        initial_anchor: int | None = None,
        device_indices: Sequence[int] | None = None,
        gpus: Sequence[Mapping[str, int]] | None = None,
        max_total_batches: int = 0,
    ) -> None:
        self.world_size = at_least("world_size", world_size, 1)
        self.max_batch_diff = max_batch_diff
        self.growth = Growth(
            at_least("anchor", anchor, 1),
            world_size,
            overhead_target=overhead_target,
            applicable=window_growth_applicable,
            min_anchor=min_anchor,
            max_anchor=max_anchor,
        )
        self.trust = TrustWindows(world_size)
        self.plan = BatchCounts(
            [anchor] * world_size, max_batch_diff=max_batch_diff, max_total=max_total_batches
        )
        self.anchor = max(self.growth.min_anchor, min(self.growth.max_anchor, anchor))
        self.anchor_rank: int | None = None
        self.phase = Phase.PROBE
        self.calibrated = False
        self.calibration_count = 0
        if speed_ratio is not None:
            self.anchor_rank = slot_of("the slot of speed_ratio", speed_ratio[0], world_size)
            self.plan.expect_ratio(self.anchor, *speed_ratio)
        if initial_anchor is not None:
            self.anchor_rank = slot_of("initial_anchor", initial_anchor, world_size)
        if self.anchor_rank is None and device_indices is not None and len(device_indices) == world_size:
            self.anchor_rank = devices.slowest_slot(device_indices, devices.probe() if gpus is None else gpus)

    # What is planned and known.

    @property
    def batch_counts(self) -> list[int]:
        """Per slot its batches in the next window."""
        return list(self.plan.counts)

    def batches(self, slot: int) -> int:
        """Return the batches of one slot in the next window."""
        return self.plan.counts[slot_of("slot", slot, self.world_size)]

    @property
    def total_batches(self) -> int:
        """The batches of the next window, all slots together."""
        return sum(self.plan.counts)

    @property
    def has_speed_hint(self) -> bool:
        """Whether the counts differ between slots."""
        return min(self.plan.counts) < max(self.plan.counts)

    @property
    def recent_batch_share(self) -> list[float]:
        """Per slot its fraction of the batches planned for the last ten windows."""
        return self.plan.recent_share()

    @property
    def smoothed_ms_per_batch(self) -> list[float | None]:
        """Per slot the mean of its trust window in ms per batch; None without a reading."""
        return [
            ms if depth else None for ms, depth in zip(self.trust.smoothed_ms, self.trust.depths, strict=True)
        ]

    @property
    def anchor_wall_ms(self) -> float:
        """The compute time the next window is planned for; 0.0 before the first calibration."""
        return self.anchor * self._slow_ms if self.calibrated else 0.0

    @property
    def growth_enabled(self) -> bool:
        """Whether no detector has latched growth off."""
        return self.growth.enabled

    @property
    def pending_callback_slack_ms(self) -> list[float]:
        """Per slot the staged slack, which the next recompute consumes."""
        return list(self.plan.slack_ms)

    @property
    def pending_window_fill_ms(self) -> list[float]:
        """Per slot the staged fill, which the next report consumes."""
        return list(self.growth.fill_ms)

    @property
    def _slow_ms(self) -> float:
        return 0.0 if self.anchor_rank is None else self.trust.smoothed_ms[self.anchor_rank]

    # What is measured.

    def report_window(self, report: WindowReport) -> None:
        """Take one window's measurements and plan the next window; a window without any time is ignored."""
        self.set_window_fill_ms(report.fill_ms)
        wall_ms, batches = report.feed()
        if any(ms > 0.0 for ms in wall_ms):
            self.report_timing(wall_ms, batches, report.sync_ms)

    def report_timing(self, wall_ms: Sequence[float], actual_batches: Sequence[int], sync_ms: float) -> None:
        """Take one window's timings and plan the next window.

        Args:
            wall_ms: per slot the time for its batches; not finite or <= 0 is no reading.
            actual_batches: per slot the batches it did.
            sync_ms: duration of the exchange.

        Raises:
            ConfigError: a length is not the world size.
        """
        one_per_slot("wall_ms", wall_ms, self.world_size)
        one_per_slot("actual_batches", actual_batches, self.world_size)
        self.trust.push(wall_ms, actual_batches)
        settled = self.phase >= Phase.STABLE
        pinned = self.anchor_rank
        if settled or pinned is None or self.trust.zero_reports[pinned] >= TRUST_WINDOW_CAP:
            self.anchor_rank = balance.elect(self.trust.smoothed_ms, pinned)
        slow_ms = self._slow_ms
        if self.anchor_rank is None or slow_ms <= 0.0:
            return
        fixed_ms = max(0.0, sync_ms) + self.growth.take_fill(self.anchor_rank)
        self.growth.proposed = None
        if settled and not self.plan.cap_binds:
            self.growth.propose(self.anchor, slow_ms, fixed_ms)
        self._recompute()
        self.plan.remember()
        self.calibrated = True
        self.calibration_count += 1
        self.phase = self.phase.after(self.calibration_count)

    def set_window_fill_ms(self, fill_ms: Sequence[float]) -> None:
        """Stage per slot what its first batch took longer than a later one; another length is ignored."""
        if len(fill_ms) == self.world_size:
            self.growth.fill_ms = list(map(float, fill_ms))

    def apply_callback_slack(self, slack_ms: Sequence[float]) -> None:
        """Stage per slot the time it will spend on callbacks; another length is ignored."""
        if len(slack_ms) == self.world_size:
            self.plan.slack_ms = list(map(float, slack_ms))

    def set_max_total_batches(self, max_total: int) -> None:
        """Bound a window's batches from the next recompute on; 0 is no bound."""
        self.plan.max_total = at_least("max_total", max_total, 0)

    def clamp_total(self, max_total: int) -> list[int]:
        """Return the counts scaled down to at most `max_total` in sum, at least 1 each; changes nothing."""
        return balance.clamped(self.plan.counts, at_least("max_total", max_total, 0))

    def _recompute(self) -> None:
        slow_ms = self._slow_ms
        if slow_ms > 0.0:
            self.plan.recompute(self.anchor, slow_ms, self.trust.smoothed_ms, calibrated=self.calibrated)

    # What detectors say.

    def apply_verdict(self, verdict: Verdict) -> None:
        """Let a verdict take effect; the one seam through which every detector speaks."""
        if verdict.kind == "stable":
            self.commit_proposed_anchor()
            if verdict.relax_up:
                self.relax_anchor_up()
            return
        self.veto_proposed_growth()
        if verdict.factor is not None:
            self.nudge_anchor_down(verdict.factor)

    def commit_proposed_anchor(self) -> None:
        """Count a stable verdict, re-arm growth after five in a row, and take up a pending proposal."""
        proposed = self.growth.stable()
        if proposed is not None:
            self.anchor = proposed
            self._recompute()

    def veto_proposed_growth(self) -> None:
        """Drop a pending proposal and latch growth off until five stable verdicts in a row."""
        self.growth.veto()

    def discard_proposed_anchor(self) -> None:
        """Do the same as `veto_proposed_growth`, before a nudge."""
        self.growth.veto()

    def nudge_anchor_down(self, factor: float) -> None:
        """Shrink the anchor to `factor` of it, clamped to [0.1, 1], below `min_anchor` if need be."""
        if math.isfinite(factor):
            self.anchor = math.ceil(self.anchor * max(NUDGE_MIN, min(NUDGE_MAX, factor)))
            self._recompute()

    def relax_anchor_up(self) -> None:
        """Grow the anchor by one, unless `max_anchor` or the spread of the counts forbids it."""
        lead = self.max_batch_diff
        if lead is not None and balance.spreads_past(lead, self.anchor + 1, self.trust.smoothed_ms):
            return
        if self.anchor < self.growth.max_anchor:
            self.anchor += 1
            self._recompute()

    # What outlives the process.

    def to_state(self) -> ElCheState:
        """Return what a checkpoint keeps."""
        smoothed_ms = list(self.trust.smoothed_ms)
        return ElCheState(self.anchor, self.anchor_rank, smoothed_ms, self.phase, self.calibration_count)

    def restore_from_state(self, state: ElCheState) -> None:
        """Start each trust window with the saved mean; refuses a state of another number of slots."""
        one_per_slot("smoothed_ms_per_batch", state.smoothed_ms_per_batch, self.world_size)
        at_least("anchor", state.anchor, 1)
        if state.anchor_rank is not None:
            slot_of("anchor_rank", state.anchor_rank, self.world_size)
        self.trust.seed(state.smoothed_ms_per_batch)
        self.anchor, self.anchor_rank, self.phase = state.anchor, state.anchor_rank, Phase(state.phase)
        self.calibration_count = state.calibration_count
        self.calibrated = any(self.trust.depths)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole replicated state but the settings, as plain values: a joining rank loads it."""
        return {
            "anchor": self.anchor,
            "anchor_rank": self.anchor_rank,
            "phase": self.phase.value,
            "calibrated": self.calibrated,
            "calibration_count": self.calibration_count,
            "growth": self.growth.state_dict(),
            "plan": self.plan.state_dict(),
            "trust": self.trust.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue as the controller whose `state_dict` it is; the settings must be equal already."""
        one_per_slot("the plan's counts", state["plan"]["counts"], self.world_size)
        for name in ("anchor", "anchor_rank", "calibrated", "calibration_count"):
            setattr(self, name, state[name])
        self.phase = Phase(state["phase"])
        for part in ("growth", "plan", "trust"):
            getattr(self, part).load_state_dict(state[part])
