"""The controller's plan: construction, refusals, counts, state; numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from elche.policy import ElChe, ElCheState, Phase, Verdict, WindowReport


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


# Construction.


def test_every_slot_starts_with_the_anchor() -> None:
    controller = ElChe(3, 7)
    assert (controller.batch_counts, controller.total_batches, controller.anchor_rank) == (
        [7, 7, 7],
        21,
        None,
    )
    assert controller.phase == Phase.PROBE
    assert not controller.has_speed_hint


def test_a_speed_ratio_pins_the_slow_slot_and_rounds_half_up() -> None:
    controller = ElChe(3, 10, speed_ratio=(1, 2.25))
    assert (controller.batch_counts, controller.anchor_rank) == ([23, 10, 23], 1)
    assert controller.has_speed_hint
    assert ElChe(2, 10, speed_ratio=(0, 0.5)).batch_counts == [10, 10]


def test_the_anchor_is_bounded_but_the_first_counts_are_what_was_asked_for() -> None:
    assert ElChe(2, 50, max_anchor=5).anchor == 5
    assert ElChe(2, 50, max_anchor=5).batch_counts == [50, 50]
    assert ElChe(2, 5, min_anchor=20).anchor == 20
    assert ElChe(2, 5, min_anchor=20, max_anchor=10).anchor == 10
    assert ElChe(2, 5, max_anchor=0).anchor == 1
    assert ElChe(2, 5000).anchor == 5000


GPUS = [
    {"index": 0, "sm_major": 8, "sm_minor": 6, "vram_bytes": 24 * 2**30},
    {"index": 1, "sm_major": 6, "sm_minor": 1, "vram_bytes": 6 * 2**30},
]


def test_the_slowest_device_is_pinned_unless_something_else_is() -> None:
    assert ElChe(2, 5, device_indices=[0, 1], gpus=GPUS).anchor_rank == 1
    assert ElChe(2, 5, device_indices=[1, 0], gpus=GPUS).anchor_rank == 0
    assert ElChe(2, 5, device_indices=[0, 1], gpus=GPUS, initial_anchor=0).anchor_rank == 0
    assert ElChe(2, 5, device_indices=[0, 2], gpus=GPUS).anchor_rank is None
    assert ElChe(2, 5, device_indices=[0], gpus=GPUS).anchor_rank is None
    assert ElChe(2, 5, device_indices=[0, 1], gpus=[]).anchor_rank is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"world_size": 0}, "world_size is 0; it must be at least 1"),
        ({"anchor": 0}, "anchor is 0; it must be at least 1"),
        ({"max_batch_diff": -1}, "max_batch_diff is -1; it must be at least 0"),
        ({"max_total_batches": -3}, "max_total_batches is -3; it must be at least 0"),
        ({"overhead_target": math.nan}, "overhead_target is nan"),
        ({"initial_anchor": 2}, r"initial_anchor is 2; it must lie in 0\.\.1"),
        ({"speed_ratio": (-1, 2.0)}, "slot of speed_ratio is -1"),
        ({"speed_ratio": (0, math.inf)}, "ratio of speed_ratio is inf"),
        ({"speed_ratio": (0, math.nan)}, "ratio of speed_ratio is nan"),
    ],
)
def test_construction_refuses_and_names_the_value(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ElChe(**{"world_size": 2, "anchor": 5, **arguments})


def test_calls_refuse_and_name_the_value() -> None:
    controller = ElChe(2, 5)
    with pytest.raises(ValueError, match="wall_ms has 3 values; it must have 2"):
        controller.report_timing([1.0, 1.0, 1.0], [1, 1], 0.0)
    with pytest.raises(ValueError, match="actual_batches has 1 values"):
        controller.report_timing([1.0, 1.0], [1], 0.0)
    with pytest.raises(ValueError, match="slot is 2"):
        controller.batches(2)
    with pytest.raises(ValueError, match="max_total is -1"):
        controller.clamp_total(-1)
    with pytest.raises(ValueError, match="max_total is -1"):
        controller.set_max_total_batches(-1)
    with pytest.raises(ValueError, match="steps has 1 values"):
        WindowReport([1.0, 1.0], [1], [1.0, 1.0], [1, 1], [0.0, 0.0], True, 0.0)
    with pytest.raises(ValueError, match="maybe"):
        Verdict("maybe")  # type: ignore[arg-type]
    assert controller.batch_counts == [5, 5]


# Counts.


def test_counts_are_proportional_to_speed() -> None:
    controller = calibrated([1.0, 2.3, 4.6], reports=1)
    assert controller.batch_counts == [46, 20, 10]
    assert controller.anchor_rank == 2
    assert controller.anchor_wall_ms == 46.0
    assert [controller.batches(slot) for slot in range(3)] == [46, 20, 10]


def test_one_slot_keeps_the_anchor() -> None:
    controller = calibrated([3.0], reports=6)
    assert (controller.batch_counts, controller.anchor_rank, controller.phase) == ([10], 0, Phase.STABLE)


def test_a_ratio_above_64_counts_as_64() -> None:
    assert calibrated([1.0, 1000.0], reports=1).batch_counts == [640, 10]


def test_halves_round_up_where_python_would_round_to_even() -> None:
    controller = ElChe(2, 1)
    timed(controller, [2.0, 5.0])
    assert controller.batch_counts == [3, 1]


def test_a_change_within_5_percent_is_ignored() -> None:
    controller = calibrated([1.0, 2.0], reports=1)
    assert controller.batch_counts == [20, 10]
    timed(controller, [1.0, 2.2])  # mean 2.1: 21 batches
    assert controller.batch_counts == [20, 10]
    timed(controller, [1.0, 2.7])  # mean 2.3: 23 batches
    assert controller.batch_counts == [23, 10]


def test_max_batch_diff_bounds_a_step_once_calibrated() -> None:
    controller = calibrated([1.0, 1.0], reports=1, max_batch_diff=3)
    timed(controller, [1.0, 9.0])  # means 1 and 5, slot 0 anchors: target 2 for slot 1
    assert controller.batch_counts == [10, 7]


def test_the_cap_scales_down_and_the_rest_goes_to_the_last_of_the_largest() -> None:
    controller = calibrated([1.0, 1.0, 4.0], reports=1, max_total_batches=21)
    assert controller.batch_counts == [9, 10, 2]  # from 40, 40, 10: floors 9, 9, 2 and one left
    assert calibrated([1.0, 1.0, 1.0], reports=1, max_total_batches=2).batch_counts == [1, 1, 1]


def test_clamp_total_hands_the_rest_to_the_first_slots_and_changes_nothing() -> None:
    controller = calibrated([1.0, 1.0, 4.0], reports=1)
    assert controller.clamp_total(22) == [10, 10, 2]  # floors 9, 9, 2
    assert controller.clamp_total(0) == [1, 1, 1]
    assert controller.batch_counts == [40, 40, 10]


def test_slack_is_taken_off_once_past_the_dead_zone() -> None:
    controller = calibrated([1.0, 4.0], reports=1)
    controller.apply_callback_slack([0.5, 0.0])
    timed(controller, [1.0, 4.0])
    assert controller.batch_counts == [39, 10]
    assert controller.pending_callback_slack_ms == [0.0, 0.0]
    controller.apply_callback_slack([math.inf, 1.0])
    timed(controller, [1.0, 4.0])
    assert controller.batch_counts == [1, 9]
    timed(controller, [1.0, 4.0])
    assert controller.batch_counts == [40, 10]


def test_recent_share_is_of_the_last_ten_windows() -> None:
    controller = ElChe(2, 1)
    assert controller.recent_batch_share == [0.5, 0.5]
    timed(controller, [1.0, 3.0])
    assert controller.recent_batch_share == [0.75, 0.25]
    for _ in range(30):
        timed(controller, [1.0, 1.0])
    assert controller.recent_batch_share == [0.5, 0.5]


# State.


def test_a_checkpoint_restores_the_measurements() -> None:
    controller = calibrated([1.0, 4.0], reports=7)
    state = controller.to_state()
    assert state == ElCheState(10, 1, [1.0, 4.0], Phase.STABLE, 7)
    other = ElChe(2, 10)
    other.restore_from_state(state)
    assert other.calibrated
    assert other.to_state() == state
    other.apply_verdict(Verdict.nudge_down(0.5))
    assert other.batch_counts == [20, 5]


@pytest.mark.parametrize(
    "state",
    [
        ElCheState(5, 0, [1.0], Phase.STABLE, 7),
        ElCheState(5, 2, [1.0, 1.0], Phase.STABLE, 7),
        ElCheState(0, 1, [1.0, 1.0], Phase.STABLE, 7),
    ],
)
def test_a_foreign_checkpoint_is_refused_and_changes_nothing(state: ElCheState) -> None:
    controller = calibrated([1.0, 4.0])
    before = controller.state_dict()
    with pytest.raises(ValueError, match="must"):
        controller.restore_from_state(state)
    assert controller.state_dict() == before


def test_a_foreign_state_dict_is_refused_and_changes_nothing() -> None:
    controller = calibrated([1.0, 4.0])
    before = controller.state_dict()
    with pytest.raises(ValueError, match="3 values; it must have 2"):
        controller.load_state_dict(ElChe(3, 10).state_dict())
    assert controller.state_dict() == before
