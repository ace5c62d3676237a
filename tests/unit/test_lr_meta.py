"""The meta-controller's rules with numbers worked out by hand; the traces check it at large."""

from __future__ import annotations

import json
import random

import pytest

from elche.policy import LrMetaController, Phase, Verdict

STABLE, SUPPRESS = Verdict.stable(), Verdict.suppress_growth()


def test_a_cliff_of_more_than_30_percent_asks_for_half() -> None:
    meta = LrMetaController()
    assert [meta.observe(lr, 10, STABLE, Phase.WARMUP) for lr in (0.1, 0.0701, 0.04)] == [None, None, 0.5]
    assert meta.observe(0.04, 10, STABLE, Phase.WARMUP) is None
    assert meta.observe(0.0, 10, STABLE, Phase.WARMUP) == 0.5
    assert meta.observe(0.0, 10, STABLE, Phase.WARMUP) is None
    assert meta.observe(0.1, 10, STABLE, Phase.WARMUP) is None


@pytest.mark.parametrize(
    ("phase", "run", "factor"), [(Phase.WARMUP, 5, 0.3), (Phase.STABLE, 3, 0.5), (Phase.MATURE, 2, 0.7)]
)
def test_a_run_of_unstable_verdicts_asks_for_the_base_of_its_phase(
    phase: Phase, run: int, factor: float
) -> None:
    meta = LrMetaController()
    verdicts = [STABLE, *[SUPPRESS, Verdict.nudge_down(0.9)] * 3][: run + 1]
    assert [meta.observe(0.1, 10, verdict, phase) for verdict in verdicts] == [None] * run + [factor]
    assert meta.observe(0.1, 10, STABLE, phase) is None


def test_both_watchers_multiply_and_the_product_is_clamped() -> None:
    meta = LrMetaController()
    meta.observe(0.1, 10, SUPPRESS, Phase.MATURE)
    assert meta.observe(0.01, 10, SUPPRESS, Phase.MATURE) == pytest.approx(0.35, rel=1e-12)
    grown = LrMetaController()
    grown.observe(0.1, 10, SUPPRESS, Phase.MATURE)
    # trend (90 - 50) / 50 = 0.8: 0.5 - 0.4 and 0.7 - 0.24 multiply to 0.046
    assert grown.observe(0.01, 90, SUPPRESS, Phase.MATURE) == 0.1


def test_the_probe_phase_is_silent_but_remembers() -> None:
    meta = LrMetaController()
    assert meta.observe(0.1, 10, SUPPRESS, Phase.PROBE) is None
    assert meta.observe(0.01, 10, SUPPRESS, Phase.PROBE) is None
    assert meta.observe(0.01, 10, SUPPRESS, Phase.STABLE) == 0.5


def test_the_trend_is_against_the_mean_of_five_windows() -> None:
    meta = LrMetaController()
    assert meta.anchor_trend == 0.0
    meta.observe(0.1, 1000, STABLE, Phase.STABLE)
    assert meta.anchor_trend == 0.0
    for anchor in (10, 10, 10, 10, 20):
        meta.observe(0.1, anchor, STABLE, Phase.STABLE)
    assert meta.anchor_trend == pytest.approx(2 / 3, rel=1e-12)
    assert not meta.is_settled
    for _ in range(5):
        meta.observe(0.1, 20, STABLE, Phase.STABLE)
    assert meta.is_settled


def test_a_copy_by_state_dict_continues_identically_for_50_windows() -> None:
    rng = random.Random(7)
    original, newcomer = LrMetaController(), LrMetaController()

    def window() -> tuple[float, int, Verdict, Phase]:
        verdict = rng.choice([STABLE, SUPPRESS, Verdict.nudge_down(0.5)])
        return rng.choice([0.1, 0.05, 0.0]), rng.randrange(1, 40), verdict, rng.choice(list(Phase))

    for _ in range(4):
        original.observe(*window())
    newcomer.load_state_dict(json.loads(json.dumps(original.state_dict())))
    for _ in range(50):
        seen = window()
        assert newcomer.observe(*seen) == original.observe(*seen)
        assert newcomer.state_dict() == original.state_dict()
