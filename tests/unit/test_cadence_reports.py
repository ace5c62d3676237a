"""What reports and verdicts do to the controller: speeds, death, election, growth; worked out by hand."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest

from elche.policy import ElChe, Phase, Verdict, WindowReport

COMPUTE_ONLY = {"delivered_ms": [0.0, 0.0], "delivered_batches": [0, 0], "delivered_coherent": False}


def timed(controller: ElChe, ms_per_batch: list[float], sync_ms: float = 0.0) -> None:
    """Report a window in which every slot did its count at these speeds."""
    counts = controller.batch_counts
    controller.report_timing([n * ms for n, ms in zip(counts, ms_per_batch, strict=True)], counts, sync_ms)


def calibrated(ms_per_batch: list[float], reports: int = 5, **settings_: Any) -> ElChe:
    """A controller of anchor 10 that has seen that many equal windows; five make it stable."""
    controller = ElChe(len(ms_per_batch), 10, **settings_)
    for _ in range(reports):
        timed(controller, ms_per_batch)
    return controller


# Reports.


def test_a_coherent_report_feeds_what_was_delivered() -> None:
    controller = ElChe(2, 4)
    controller.report_window(
        WindowReport([40.0, 100.0], [4, 4], [60.0, 165.0], [3, 3], [2.0, 0.0], True, 1.0)
    )
    assert controller.smoothed_ms_per_batch == [20.0, 55.0]
    assert controller.pending_window_fill_ms == [0.0, 0.0]


def test_an_incoherent_report_feeds_compute_for_every_slot() -> None:
    controller = ElChe(2, 4)
    controller.report_window(WindowReport([40.0, 100.0], [4, 4], [60.0, 0.0], [3, 0], [0.0, 0.0], False, 1.0))
    assert controller.smoothed_ms_per_batch == [10.0, 25.0]


def test_a_window_without_any_time_is_ignored() -> None:
    controller = calibrated([1.0, 2.0])
    before = controller.state_dict()
    for _ in range(6):
        controller.report_window(
            WindowReport([0.0, 0.0], [0, 0], fill_ms=[0.0, 0.0], sync_ms=1.0, **COMPUTE_ONLY)
        )
    assert controller.state_dict() == before


def test_arrays_give_the_same_bits_as_lists() -> None:
    lists, arrays = ElChe(3, 5), ElChe(3, 5)
    rng = random.Random(3)
    for _ in range(20):
        wall_ms = [rng.choice([0.0, rng.uniform(1, 90)]) for _ in range(3)]
        steps = [rng.randrange(4) for _ in range(3)]
        lists.report_window(WindowReport(wall_ms, steps, wall_ms, steps, [1.0] * 3, True, 2.0))
        wall_w, steps_w = np.array(wall_ms), np.array(steps)
        arrays.report_window(WindowReport(wall_w, steps_w, wall_w, steps_w, np.ones(3), True, 2.0))
    assert json.dumps(arrays.state_dict()) == json.dumps(lists.state_dict())


@pytest.mark.parametrize("wall", [0.0, -1.0, math.nan, math.inf])
def test_an_invalid_reading_is_a_missed_window(wall: float) -> None:
    controller = calibrated([1.0, 4.0], reports=2)
    for missed in range(1, 6):
        assert controller.smoothed_ms_per_batch == [1.0, 4.0], missed
        controller.report_timing([wall, 40.0], [40, 10], 0.0)
    assert controller.smoothed_ms_per_batch == [None, 4.0]


def test_a_reading_in_between_restarts_the_count_of_missed_windows() -> None:
    controller = calibrated([1.0, 4.0], reports=2)
    for _ in range(3):
        for _ in range(4):
            controller.report_timing([0.0, 40.0], [0, 10], 0.0)
        timed(controller, [1.0, 4.0])
    assert controller.smoothed_ms_per_batch == [1.0, 4.0]


def test_a_slot_that_returns_after_its_death_is_measured_afresh() -> None:
    controller = calibrated([1.0, 4.0])
    for _ in range(5):
        controller.report_timing([0.0, 40.0], [0, 10], 0.0)
    controller.report_timing([80.0, 40.0], [40, 10], 0.0)
    assert controller.smoothed_ms_per_batch == [2.0, 4.0]
    assert controller.batch_counts == [20, 10]


def test_phases_come_with_calibrations() -> None:
    controller = ElChe(2, 5)
    seen = []
    for _ in range(21):
        timed(controller, [1.0, 2.0])
        seen.append(controller.phase)
    assert seen == [Phase.WARMUP] * 4 + [Phase.STABLE] * 15 + [Phase.MATURE] * 2
    assert Phase.PROBE < Phase.WARMUP < Phase.STABLE < Phase.MATURE
    assert Phase("mature") >= Phase.MATURE


# Election.


def test_the_anchor_rank_is_the_slowest_at_first_and_stays_through_warmup() -> None:
    controller = ElChe(2, 10, initial_anchor=0)
    for _ in range(5):
        timed(controller, [1.0, 2.0])
        assert controller.anchor_rank == 0
    timed(controller, [1.0, 2.0])
    assert controller.anchor_rank == 1


def test_a_settled_anchor_rank_gives_way_only_to_a_clearly_slower_slot() -> None:
    controller = calibrated([4.0, 3.9], reports=6)
    for _ in range(5):
        timed(controller, [4.0, 4.35])
    assert controller.anchor_rank == 0
    for _ in range(5):
        timed(controller, [4.0, 4.45])
    assert controller.anchor_rank == 1


def test_a_pinned_slot_that_never_reports_is_replaced_after_five_windows() -> None:
    controller = ElChe(3, 10, initial_anchor=0)
    for _ in range(4):
        controller.report_timing([0.0, 20.0, 10.0], [0, 10, 10], 0.0)
        assert (controller.anchor_rank, controller.calibration_count) == (0, 0)
    controller.report_timing([0.0, 20.0, 10.0], [0, 10, 10], 0.0)
    assert (controller.anchor_rank, controller.calibration_count) == (1, 1)


# Growth and verdicts.


def test_growth_waits_for_a_stable_verdict() -> None:
    controller = calibrated([1.0, 1.0])
    timed(controller, [1.0, 1.0], sync_ms=1.0)  # overhead 1/11, target 0.05: 10 * 1.818 = 18.2
    assert controller.anchor == 10
    controller.apply_verdict(Verdict.stable())
    assert (controller.anchor, controller.batch_counts) == (19, [19, 19])


def test_growth_counts_the_fill_of_the_anchor_rank_and_at_most_doubles() -> None:
    controller = calibrated([1.0, 1.0])
    controller.set_window_fill_ms([1e6, 0.0])
    timed(controller, [1.0, 1.0])
    controller.apply_verdict(Verdict.stable())
    assert controller.anchor == 20


@pytest.mark.parametrize(
    "settings_", [{"window_growth_applicable": False}, {"max_anchor": 10}, {"max_total_batches": 5}]
)
def test_growth_can_be_forbidden(settings_: dict[str, Any]) -> None:
    controller = calibrated([1.0, 1.0], **settings_)
    timed(controller, [1.0, 1.0], sync_ms=100.0)
    controller.apply_verdict(Verdict.stable())
    assert controller.anchor == 10


def test_a_suppression_latches_growth_off_until_the_fifth_stable_verdict() -> None:
    controller = calibrated([1.0, 1.0])
    controller.apply_verdict(Verdict.suppress_growth())
    anchors = []
    for _ in range(6):
        timed(controller, [1.0, 1.0], sync_ms=1.0)
        controller.apply_verdict(Verdict.stable())
        anchors.append((controller.growth_enabled, controller.anchor))
    assert anchors == [(False, 10)] * 4 + [(True, 10), (True, 19)]


def test_a_nudge_drops_the_proposal_and_goes_below_min_anchor() -> None:
    controller = calibrated([1.0, 2.0])
    timed(controller, [1.0, 2.0], sync_ms=100.0)
    controller.apply_verdict(Verdict.nudge_down(0.35))
    controller.apply_verdict(Verdict.stable())
    assert (controller.anchor, controller.batch_counts) == (4, [8, 4])


@pytest.mark.parametrize(
    ("factor", "anchor"), [(2.0, 10), (0.0, 1), (math.nan, 10), (-math.inf, 10), (0.95, 10)]
)
def test_a_nudge_never_lifts_the_anchor(factor: float, anchor: int) -> None:
    controller = calibrated([1.0, 1.0])
    controller.nudge_anchor_down(factor)
    assert controller.anchor == anchor


def test_relaxing_stops_at_max_anchor_and_at_the_spread() -> None:
    controller = calibrated([1.0, 1.0], max_anchor=11)
    for _ in range(3):
        controller.apply_verdict(Verdict.stable(relax_up=True))
    assert controller.anchor == 11
    spread = calibrated([1.0, 3.0], max_batch_diff=22)
    for _ in range(3):
        spread.relax_anchor_up()
    assert spread.anchor == 11  # 33 - 11 = 22; with 12 it would be 24
