"""The guards' rules with numbers worked out by hand; the traces check them at large."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from elche.policy import DivergenceReport, MsfGuard, NoGuard, TrendGuard, Verdict


def drift(*deltas: float) -> DivergenceReport:
    return DivergenceReport(deltas=deltas)


def kinds(guard: Any, divergences: list[float], k_max: int = 1) -> list[str]:
    return [guard.report(drift(divergence), k_max, k_max).kind for divergence in divergences]


def test_verdicts_carry_what_their_kind_needs() -> None:
    assert Verdict.stable() == Verdict("stable", None, False)
    assert Verdict.stable(relax_up=True) == Verdict("stable", None, True)
    assert Verdict.suppress_growth() == Verdict("suppress_growth", None, False)
    assert Verdict.nudge_down(0.5) == Verdict("nudge_down", 0.5, False)


def test_the_divergence_is_the_largest_number_among_the_deltas() -> None:
    assert drift(0.1, 0.3, 0.2).max_relative_delta == 0.3
    assert drift(math.nan, 0.3, math.nan).max_relative_delta == 0.3
    assert drift().max_relative_delta == 0.0


def test_cosines_and_shifts_follow_from_three_norms() -> None:
    # Right angle at the origin: pre 3, post 4, distance 5. Same direction: pre 6, post 4, distance 2.
    report = DivergenceReport(deltas=[1.25, 0.5, 0.1], pre_norms=[3.0, 6.0, 0.0], post_norm=4.0)
    assert report.cosine_similarities == [0.0, 1.0, 0.0]
    assert report.magnitude_shifts == [-1.0, 2.0, -4.0]
    assert DivergenceReport(deltas=[9.0], pre_norms=[1.0], post_norm=1.0).cosine_similarities == [-1.0]
    assert DivergenceReport(deltas=[0.1], pre_norms=[1.0], post_norm=0.0).cosine_similarities is None
    assert drift(0.1).cosine_similarities is None
    assert drift(0.1).magnitude_shifts is None
    with pytest.raises(ValueError, match="pre_norms has 1 values; it must have 2"):
        DivergenceReport(deltas=[0.1, 0.2], pre_norms=[1.0], post_norm=1.0)


def test_no_guard_is_always_stable() -> None:
    guard = NoGuard()
    assert kinds(guard, [0.1, 10.0, 1000.0, math.inf]) == ["stable"] * 4
    guard.load_state_dict(guard.state_dict())
    guard.reset()
    assert guard.telemetry() == {}


def test_a_trend_needs_three_rising_values_above_the_threshold() -> None:
    assert kinds(TrendGuard(0.05), [0.01, 0.02, 0.03, 0.06]) == ["stable"] * 3 + ["suppress_growth"]
    assert kinds(TrendGuard(0.05), [0.1, 0.2, 0.2, 0.3, 0.4]) == ["stable"] * 4 + ["suppress_growth"]
    guard = TrendGuard(0.05)
    kinds(guard, [0.1, 0.2])
    assert guard.telemetry() == {"d_history_last": 0.2}
    guard.reset()
    assert kinds(guard, [0.3]) == ["stable"]


def test_the_growth_rate_is_per_batch_and_its_first_mean_has_no_bias() -> None:
    guard = MsfGuard()
    kinds(guard, [0.1, 0.2], k_max=10)
    rate = math.log(2.0) / 10
    assert guard.telemetry() == pytest.approx({"lambda_raw": rate, "lambda_ema": rate}, rel=1e-12)
    kinds(guard, [0.2], k_max=10)
    mean = 0.9 * rate / 1.9  # (0.9 * 0.1 * rate + 0.1 * 0) / (1 - 0.81)
    assert guard.telemetry() == pytest.approx({"lambda_raw": 0.0, "lambda_ema": mean}, rel=1e-12)


def test_a_nudge_goes_before_a_suppression_and_resets_its_own_streak() -> None:
    # ln 2 per batch is above both thresholds, so that from the second report on both streaks count each one.
    # suppress: 1 2-0 1 2-0 1 2 3-0 1, fires at 2; nudge: 1 2 3-0 1 2 3-0 1 2, fires at 3 and hides the other.
    doubling = [0.01 * 2**step for step in range(9)]
    expected = (
        "stable stable suppress_growth nudge_down suppress_growth stable nudge_down suppress_growth stable"
    )
    assert " ".join(kinds(MsfGuard(suppress_sustain=2), doubling)) == expected


def test_without_a_measurable_divergence_the_mean_stands_but_the_previous_is_forgotten() -> None:
    guard = MsfGuard(nudge_threshold=math.inf)
    kinds(guard, [0.1, 0.2])
    assert kinds(guard, [1e-9, 0.2, math.inf, 0.3]) == ["stable", "suppress_growth", "stable", "stable"]
    assert guard.telemetry() == pytest.approx({"lambda_ema": math.log(2.0)}, rel=1e-12)
    kinds(guard, [0.3], k_max=0)
    assert guard.telemetry() == pytest.approx({"lambda_ema": math.log(2.0)}, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"alpha": 1.0}, "alpha is 1.0"),
        ({"alpha": math.nan}, "alpha is nan"),
        ({"suppress_threshold": math.nan}, "suppress_threshold is nan"),
        ({"nudge_sustain": 0}, "nudge_sustain is 0"),
        ({"suppress_sustain": -1}, "suppress_sustain is -1"),
    ],
)
def test_wrong_settings_are_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        MsfGuard(**arguments)


def test_a_trend_threshold_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="threshold is nan"):
        TrendGuard(math.nan)


@pytest.mark.parametrize("make", [NoGuard, TrendGuard, MsfGuard])
def test_a_copy_by_state_dict_continues_identically_for_50_windows(make: Any) -> None:
    rng = random.Random(5)
    original, newcomer = make(), make()
    kinds(original, [rng.uniform(0.01, 0.2) for _ in range(7)])
    newcomer.load_state_dict(json.loads(json.dumps(original.state_dict())))
    for _ in range(50):
        report, k_max = drift(rng.choice([0.0, rng.uniform(0.01, 0.2)])), rng.randrange(4)
        assert newcomer.report(report, k_max, k_max) == original.report(report, k_max, k_max)
        assert newcomer.telemetry() == original.telemetry()
        assert newcomer.state_dict() == original.state_dict()


def test_a_guard_that_is_reset_is_as_new() -> None:
    used, new = MsfGuard(), MsfGuard()
    kinds(used, [0.1, 0.2, 0.4])
    used.reset()
    assert used.state_dict() == new.state_dict()
    assert used.telemetry() == {}
