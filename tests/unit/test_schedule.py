"""The schedule's slots: who may take them, when they die, and what an unused or dead one does to the plan."""

from __future__ import annotations

import json

import pytest

from elche.config import Cadence
from elche.errors import ConfigError, UsageError
from elche.policy.ledger import SlotReport, window_report
from elche.policy.membership import SlotState
from elche.policy.schedule import Schedule

LIVING, RESERVED, VACANT, UNUSED = SlotState


def report(schedule, ms_per_batch):
    """Report a window in which every living slot did its count at these speeds; return the next counts."""
    pairs = zip(schedule.counts(), ms_per_batch, strict=True)
    measured = [SlotReport(n, 8 * n, n * ms, ms, (n - 1) * ms) if n else SlotReport() for n, ms in pairs]
    schedule.observe(window_report(measured, schedule.living, sync_ms=1.0), lr=0.1)
    return schedule.counts()


def calibrated(ms_per_batch, windows=8, **settings):
    schedule = Schedule(Cadence(anchor=2, **settings), len(ms_per_batch))
    for _ in range(windows):
        report(schedule, ms_per_batch)
    return schedule


# Slots.


def test_all_slots_live_unless_told():
    assert Schedule(Cadence(), 2).slot_states() == [LIVING, LIVING]
    schedule = Schedule(Cadence(anchor=3), 3, living=[True, False, True])
    assert schedule.slot_states() == [LIVING, UNUSED, LIVING]
    assert schedule.living == [True, False, True]
    assert schedule.counts() == [3, 0, 3]


def test_a_lost_slot_gets_nothing_and_is_vacant_or_reserved():
    schedule = calibrated([1.0, 2.0, 4.0])
    assert schedule.counts() == [8, 4, 2]
    schedule.lose(0, reserved=False)
    schedule.lose(1, reserved=True)
    assert schedule.slot_states() == [VACANT, RESERVED, LIVING]
    assert schedule.counts() == [0, 0, 2]
    schedule.lose(1, reserved=False)  # the process that was set aside has died
    assert schedule.slot_states() == [VACANT, VACANT, LIVING]


@pytest.mark.parametrize("reserved", [True, False])
def test_the_fifth_missed_window_is_the_death_of_a_slot(reserved):
    schedule = calibrated([1.0, 2.0, 4.0])
    schedule.lose(1, reserved=reserved)
    for _ in range(4):
        report(schedule, [1.0, 0.0, 4.0])
        assert schedule.died == ()
        assert schedule.slot_states()[1] is (RESERVED if reserved else VACANT)
        assert schedule.ms_per_batch()[1] == 2.0
    report(schedule, [1.0, 0.0, 4.0])
    assert schedule.died == (1,)
    assert schedule.slot_states() == [LIVING, VACANT, LIVING]
    assert schedule.ms_per_batch()[1] == 0.0
    report(schedule, [1.0, 0.0, 4.0])
    assert schedule.died == ()


@pytest.mark.parametrize("missed", [0, 1, 4])
def test_who_fills_a_slot_inside_the_trust_window_has_its_old_share(missed):
    schedule = calibrated([1.0, 2.0, 4.0])
    schedule.lose(0, reserved=True)
    for _ in range(missed):
        report(schedule, [0.0, 2.0, 4.0])
    schedule.fill(0)
    assert schedule.counts() == [8, 4, 2]
    for _ in range(9):
        report(schedule, [1.0, 2.0, 4.0])
        assert schedule.died == ()
    assert schedule.slot_states() == [LIVING] * 3


def test_who_fills_a_slot_that_has_died_is_measured_afresh():
    schedule = calibrated([1.0, 2.0, 4.0])
    schedule.lose(0, reserved=True)
    for _ in range(5):
        report(schedule, [0.0, 2.0, 4.0])
    schedule.fill(0)
    assert schedule.counts() == [2, 4, 2]
    assert report(schedule, [2.0, 2.0, 4.0]) == [4, 4, 2]
    assert schedule.ms_per_batch() == [2.0, 2.0, 4.0]


def test_a_slot_dies_again_after_it_was_filled():
    schedule = calibrated([1.0, 1.0])
    for _ in range(2):
        schedule.lose(1, reserved=False)
        deaths = [(report(schedule, [1.0, 0.0]), schedule.died)[1] for _ in range(6)]
        assert deaths == [(), (), (), (), (1,), ()]
        schedule.fill(1)
        report(schedule, [1.0, 1.0])


def test_a_living_slot_without_a_share_lives_on_and_only_its_speed_is_forgotten():
    schedule = calibrated([1.0, 4.0])
    for _ in range(7):
        busy = SlotReport(2, 16, 2.0, 1.0, 1.0)
        schedule.observe(window_report([busy, SlotReport()], schedule.living, sync_ms=1.0), lr=0.1)
        assert schedule.died == ()
    assert schedule.slot_states() == [LIVING, LIVING]
    assert schedule.ms_per_batch() == [1.0, 0.0]
    assert schedule.counts() == [2, 2]
    schedule.lose(1, reserved=True)  # its five missed windows have passed already
    report(schedule, [1.0, 0.0])
    assert (schedule.died, schedule.slot_states()) == ((1,), [LIVING, VACANT])


def test_sync_counts_the_living_only():
    schedule = Schedule(Cadence(policy="sync", anchor=3), 3, living=[True, True, False])
    assert schedule.counts() == [3, 3, 0]
    schedule.fill(2)
    schedule.lose(0, reserved=True)
    assert schedule.counts() == [0, 3, 3]
    assert report(schedule, [0.0, 1.0, 9.0]) == [0, 3, 3]


@pytest.mark.parametrize(("policy", "expected"), [("sync", [0.0, 0.0]), ("cadence", [30.0, 10.0])])
def test_in_lockstep_nothing_that_was_measured_deals(policy, expected):
    """Who gets an epoch's last batches would vary from run to run."""
    schedule = calibrated([30.0, 10.0], policy=policy)
    assert schedule.ms_to_deal_by() == pytest.approx(expected)
    assert schedule.ms_per_batch() == pytest.approx([30.0, 10.0])


def test_wrong_calls_are_refused_and_named():
    schedule = Schedule(Cadence(), 3, living=[True, True, False])
    with pytest.raises(UsageError, match="lose: slot 2 is unused already"):
        schedule.lose(2, reserved=True)
    with pytest.raises(UsageError, match="fill: slot 1 is living already"):
        schedule.fill(1)
    with pytest.raises(ConfigError, match=r"slot is 3; it must lie in 0\.\.2"):
        schedule.fill(3)
    schedule.lose(1, reserved=False)
    with pytest.raises(UsageError, match="lose: slot 1 is vacant already"):
        schedule.lose(1, reserved=True)
    assert schedule.slot_states() == [LIVING, VACANT, UNUSED]
    with pytest.raises(ConfigError, match="living has 2 values; it must have 3"):
        Schedule(Cadence(), 3, living=[True, True])
    with pytest.raises(ConfigError, match="must be held at first, at most 1, got 2"):
        Schedule(Cadence(speed_ratio=(2, 2.0)), 3, living=[True, True, False])


# Growth.

SPEEDS = [1.0, 2.3, 4.6]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_anchor": 50},
        {"max_batch_diff": 3},
        {"max_anchor": 9, "relax_up": True},
        {"speed_ratio": (2, 3.0)},
    ],
)
def test_unused_slots_change_nothing_for_the_others(settings):
    cadence = Cadence(anchor=2, **settings)
    small, large = Schedule(cadence, 3), Schedule(cadence, 5, living=[True] * 3 + [False] * 2)
    assert [*small.counts(), 0, 0] == large.counts()
    for window in range(30):
        speeds = [ms * (1 + window % 3) for ms in SPEEDS]
        assert [*report(small, speeds), 0, 0] == report(large, [*speeds, 0.0, 0.0])
        assert large.died == ()
        for name in ("anchor", "anchor_rank", "phase", "calibrated", "calibration_count"):
            assert getattr(small.controller, name) == getattr(large.controller, name)
    assert small.controller.calibration_count == 30
    assert large.slot_states() == [LIVING] * 3 + [UNUSED] * 2


@pytest.mark.parametrize("windows", [0, 1, 8])
def test_an_unused_slot_is_calibrated_by_its_first_window(windows):
    schedule = Schedule(Cadence(anchor=4), 3, living=[True, True, False])
    for _ in range(windows):
        report(schedule, [1.0, 2.0, 0.0])
    schedule.fill(2)
    assert schedule.counts()[2] == 4  # its speed is not known yet
    assert report(schedule, [1.0, 2.0, 0.5]) == [8, 4, 16]
    schedule.lose(2, reserved=False)
    assert schedule.slot_states()[2] is VACANT


def test_an_unused_slot_that_turns_out_to_be_the_slowest_becomes_the_anchor():
    schedule = Schedule(Cadence(anchor=2), 3, living=[True, True, False])
    for _ in range(8):
        report(schedule, [1.0, 2.0, 0.0])
    schedule.fill(2)
    assert report(schedule, [1.0, 2.0, 8.0]) == [16, 8, 2]
    assert schedule.controller.anchor_rank == 2


def test_the_slowest_gpu_is_looked_for_among_the_living():
    gpus = [
        {"index": slot, "sm_major": major, "sm_minor": 0, "vram_bytes": 2**30}
        for slot, major in ((1, 9), (2, 7), (3, 8))
    ]
    living = [False, True, True, True, False]
    assert Schedule(Cadence(), 5, living=living, gpus=gpus).controller.anchor_rank == 2
    assert Schedule(Cadence(speed_ratio=(1, 2.0)), 5, living=living, gpus=gpus).controller.anchor_rank == 1
    assert Schedule(Cadence(), 5, living=living).controller.anchor_rank is None


# The anchor dies.


@pytest.mark.parametrize("windows", [1, 3, 8, 25])  # in warm-up, where the anchor rank is pinned, and after
def test_counts_outlast_a_dead_anchor_and_become_the_survivors_own_at_its_death_exception(windows):
    schedule = calibrated([1.0, 2.0, 10.0], windows)
    assert (schedule.counts(), schedule.controller.anchor_rank) == ([20, 10, 2], 2)
    schedule.lose(2, reserved=False)
    for _ in range(4):
        assert report(schedule, [1.0, 2.0, 0.0]) == [20, 10, 0]
        assert schedule.controller.anchor_rank == 2
    assert report(schedule, [1.0, 2.0, 0.0]) == [4, 2, 0]
    assert (schedule.died, schedule.controller.anchor_rank) == ((2,), 1)


def test_with_a_bound_on_steps_counts_walk_to_the_survivors_own():
    schedule = calibrated([1.0, 2.0, 10.0], max_batch_diff=5)
    schedule.lose(2, reserved=False)
    walked = [report(schedule, [1.0, 2.0, 0.0]) for _ in range(8)]
    assert walked == [[20, 10, 0]] * 4 + [[15, 5, 0], [10, 2, 0], [5, 2, 0], [4, 2, 0]]


def test_a_pinned_anchor_that_dies_before_its_first_report_delays_the_calibration_by_the_trust_window():
    schedule = Schedule(Cadence(anchor=2, speed_ratio=(2, 3.0)), 3)
    schedule.lose(2, reserved=False)
    for _ in range(4):
        assert report(schedule, [1.0, 2.0, 0.0]) == [6, 6, 0]
        assert not schedule.controller.calibrated
    assert report(schedule, [1.0, 2.0, 0.0]) == [4, 2, 0]
    assert schedule.controller.calibrated


# State.


def test_a_schedule_goes_on_from_anothers_state():
    cadence = Cadence(anchor=2, max_anchor=20)
    one = Schedule(cadence, 4, living=[True, True, True, False])
    for _ in range(6):
        report(one, [1.0, 2.0, 4.0, 0.0])
    one.lose(0, reserved=True)
    one.lose(1, reserved=False)
    for _ in range(5):
        report(one, [0.0, 0.0, 4.0, 0.0])
    assert one.died == (0, 1)
    one.fill(0)
    report(one, [3.0, 0.0, 4.0, 0.0])
    one.lose(2, reserved=True)

    other = Schedule(cadence, 4)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert other.slot_states() == one.slot_states() == [LIVING, VACANT, RESERVED, UNUSED]
    for _ in range(7):
        assert report(one, [3.0, 0.0, 0.0, 0.0]) == report(other, [3.0, 0.0, 0.0, 0.0])
        assert one.died == other.died
        assert one.state_dict() == other.state_dict()
    assert one.slot_states() == [LIVING, VACANT, VACANT, UNUSED]


def test_the_slots_whose_death_was_just_told_are_part_of_the_state():
    one = calibrated([1.0, 2.0])
    one.lose(1, reserved=True)
    for _ in range(5):
        report(one, [1.0, 0.0])
    other = Schedule(Cadence(anchor=2), 2)
    other.load_state_dict(one.state_dict())
    assert other.died == (1,)
    report(other, [1.0, 0.0])
    assert other.died == ()
