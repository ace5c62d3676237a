"""Laws of the controller over random rigs, reports and verdicts."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from elche.policy import ElChe, Verdict, WindowReport


def run_a_window(controller: ElChe, rng: random.Random, caps: Sequence[int] = ()) -> None:
    """Do what a window may bring, in an order a job could have; now and then one of `caps` is set."""
    n = controller.world_size
    if rng.random() < 0.2:
        controller.apply_callback_slack([rng.choice([0.0, rng.uniform(0, 500)]) for _ in range(n)])
    if caps and rng.random() < 0.1:
        controller.set_max_total_batches(rng.choice(caps))
    steps = [rng.choice([0, count, count, count, count + 1]) for count in controller.batch_counts]
    wall_ms = [count * rng.uniform(1, 9) * (1 + slot) for slot, count in enumerate(steps)]
    delivered = [max(0, count - 1) for count in steps]
    delivered_ms = [count * rng.uniform(1, 9) for count in delivered]
    fill_ms = [rng.choice([0.0, 20.0]) for _ in range(n)]
    sync_ms = rng.choice([0.0, 5.0, 200.0])
    controller.report_window(
        WindowReport(wall_ms, steps, delivered_ms, delivered, fill_ms, rng.random() < 0.5, sync_ms)
    )
    verdicts = [
        Verdict.stable(),
        Verdict.stable(relax_up=True),
        Verdict.suppress_growth(),
        Verdict.nudge_down(0.7),
    ]
    controller.apply_verdict(rng.choices(verdicts, weights=[8, 2, 1, 1])[0])


configs = st.fixed_dictionaries(
    {"world_size": st.integers(1, 7), "anchor": st.integers(1, 40)},
    optional={
        "max_batch_diff": st.integers(0, 20),
        "max_total_batches": st.integers(0, 200),
        "max_anchor": st.integers(0, 100),
        "overhead_target": st.floats(0.0, 0.6),
    },
)


@settings(max_examples=40, deadline=None)
@given(configs, st.integers(0, 30), st.integers(0, 2**32))
def test_a_copy_by_state_dict_continues_identically_for_50_windows(
    config: dict[str, Any], windows: int, seed: int
) -> None:
    original, rng = ElChe(**config), random.Random(seed)
    for _ in range(windows):
        run_a_window(original, rng)
    newcomer = ElChe(**config)
    newcomer.load_state_dict(json.loads(json.dumps(original.state_dict())))
    twin_rng = copy.deepcopy(rng)
    for _ in range(50):
        run_a_window(original, rng, caps=[0, 3, 20, 50])
        run_a_window(newcomer, twin_rng, caps=[0, 3, 20, 50])
        assert newcomer.state_dict() == original.state_dict()
        assert newcomer.batch_counts == original.batch_counts


@settings(max_examples=60, deadline=None)
@given(configs, st.integers(0, 2**32))
def test_counts_stay_positive_and_under_the_cap(config: dict[str, Any], seed: int) -> None:
    controller, rng = ElChe(**config), random.Random(seed)
    cap = config.get("max_total_batches", 0)
    for _ in range(30):
        run_a_window(controller, rng)
        counts = controller.batch_counts
        assert controller.anchor >= 1
        assert min(counts) >= 1
        if cap and controller.calibrated:
            # Only counts that the floor of 1 has lifted may lie above the cap.
            assert sum(counts) <= cap or sum(n for n in counts if n > 1) < cap


numbers = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.lists(numbers, min_size=3, max_size=3), numbers, numbers), max_size=12))
def test_no_measurement_breaks_it(reports: list[tuple[list[float], float, float]]) -> None:
    controller = ElChe(3, 4, max_batch_diff=6)
    for wall_ms, sync_ms, factor in reports:
        controller.set_window_fill_ms(wall_ms)
        controller.apply_callback_slack(wall_ms)
        controller.report_timing(wall_ms, [1, 2, 3], sync_ms)
        controller.apply_verdict(Verdict.stable(relax_up=True))
        controller.apply_verdict(Verdict.nudge_down(factor))
        assert min(controller.batch_counts) >= 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.floats(0.1, 1e3) | st.just(0.0), min_size=4, max_size=4), min_size=1, max_size=25)
)
def test_trust_windows_hold_the_last_five_readings_and_die_after_five_misses(rows: list[list[float]]) -> None:
    controller = ElChe(4, 1)
    readings: list[list[float]] = [[] for _ in range(4)]
    missed = [0] * 4
    for row in rows:
        controller.report_timing(row, [1] * 4, 0.0)
        for slot, ms in enumerate(row):
            missed[slot] = 0 if ms > 0.0 else missed[slot] + 1
            if ms > 0.0:
                readings[slot].append(ms)
            elif missed[slot] >= 5:
                readings[slot].clear()
    for slot, smoothed_ms in enumerate(controller.smoothed_ms_per_batch):
        last = readings[slot][-5:]
        total = 0.0
        for ms in last:
            total += ms  # oldest first: the same bits, not only about the same
        assert smoothed_ms == (total / len(last) if last else None)
