"""Replays of the recorded traces of the original: no difference in any of them."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from elche.policy.cadence import ElChe, ElCheState, Phase, WindowReport
from elche.policy.guards import DivergenceReport, MsfGuard, TrendGuard, Verdict
from elche.policy.lr_meta import LrMetaController

HERE = Path(__file__).parent
SHARED = HERE.parents[2] / "shared" / "conformance"
FOLDER = SHARED if SHARED.is_dir() else HERE
DETECTORS = {"trend": TrendGuard, "msf": MsfGuard, "msfdefault": MsfGuard, "meta": LrMetaController}
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def load(name: str) -> list[dict[str, Any]]:
    with gzip.open(FOLDER / name, "rt") as lines:
        return [json.loads(line) for line in lines]


def numbers(value: Any) -> Any:
    """Turn the strings that stand for non-finite floats into them, at any depth."""
    if isinstance(value, dict):
        return {key: numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [numbers(inner) for inner in value]
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def differs(actual: Any, expected: Any) -> bool:
    """Integers, strings, booleans and None exactly, floats to 1e-12 relative."""
    if isinstance(expected, dict):
        return set(actual) != set(expected) or any(differs(actual[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(actual) != len(expected) or any(map(differs, actual, expected))
    if isinstance(expected, float) and not isinstance(actual, bool) and isinstance(actual, (int, float)):
        same_nan = math.isnan(actual) and math.isnan(expected)
        return not same_nan and not math.isclose(actual, expected, rel_tol=1e-12, abs_tol=0.0)
    return type(actual) is not type(expected) or bool(actual != expected)


def verdict_of(kind: str, factor: float = math.nan, relax_up: bool = False) -> Verdict:
    made = {
        "stable": Verdict.stable(relax_up=relax_up),
        "suppress_growth": Verdict.suppress_growth(),
        "nudge_down": Verdict.nudge_down(factor),
    }
    return made[kind]


def state_of(controller: ElChe, names: list[str]) -> dict[str, Any]:
    values = {name: getattr(controller, name) for name in names}
    return {**values, "phase": controller.phase.value}


def call(controller: ElChe, op: str, args: dict[str, Any]) -> Any:
    if op == "report_window":
        return controller.report_window(WindowReport(**args))
    if op == "apply_verdict":
        return controller.apply_verdict(verdict_of(args.pop("verdict"), **args))
    if op in ("roundtrip_state", "restore_from_state"):
        state = ElCheState(**{**args, "phase": Phase(args["phase"])}) if args else controller.to_state()
        return restore(controller, state)
    return getattr(controller, op)(**args)


def restore(controller: ElChe, state: ElCheState) -> str:
    try:
        controller.restore_from_state(state)
    except ValueError:
        return "err"
    return "ok"


@pytest.mark.parametrize("trace", load("elche.jsonl.gz"), ids=lambda trace: trace["config"]["world_size"])
def test_controller_replays_its_trace(trace: dict[str, Any]) -> None:
    trace = numbers(trace)
    controller = ElChe(**trace["config"], gpus=trace["gpus"])
    names = list(trace["initial"])
    assert not differs(state_of(controller, names), trace["initial"])
    for number, step in enumerate(trace["steps"]):
        result = call(controller, step["op"], dict(step.get("args", {})))
        expected = dict(step["expect"])
        actual = state_of(controller, names)
        if "result" in expected:
            actual["result"] = result
        assert not differs(actual, expected), f"step {number}, {step['op']}: {actual} is not {expected}"
    assert trace["steps"]


def detector_of(kind: str, config: dict[str, Any]) -> Any:
    return DETECTORS[kind](**config)


def observe(meta: LrMetaController, lr: float, anchor: int, verdict: str, phase: str) -> dict[str, Any]:
    factor = meta.observe(lr, anchor, verdict_of(verdict), Phase(phase))
    return {"factor": factor, "anchor_trend": meta.anchor_trend, "is_settled": meta.is_settled}


def judge(guard: Any, k_used: int, k_max: int, **fields: Any) -> dict[str, Any]:
    report = DivergenceReport(**fields)
    verdict = guard.report(report, k_used, k_max)
    seen = {
        "verdict": verdict.kind,
        "max_relative_delta": report.max_relative_delta,
        "telemetry": guard.telemetry(),
        "cosine_similarities": report.cosine_similarities,
        "magnitude_shifts": report.magnitude_shifts,
    }
    return {**seen, "factor": verdict.factor} if verdict.kind == "nudge_down" else seen


@pytest.mark.parametrize("trace", load("guards.jsonl.gz"), ids=lambda trace: trace["kind"])
def test_detector_replays_its_trace(trace: dict[str, Any]) -> None:
    trace = numbers(trace)
    detector = detector_of(trace["kind"], trace["config"])
    for number, step in enumerate(trace["steps"]):
        if step["op"] == "reset":
            detector.reset()
            continue
        actual = (observe if step["op"] == "observe" else judge)(detector, **step["args"])
        assert not differs(actual, step["expect"]), f"step {number}: {actual} is not {step['expect']}"
    assert trace["steps"]


def test_every_trace_is_there() -> None:
    assert (len(load("elche.jsonl.gz")), len(load("guards.jsonl.gz"))) == (160, 120)
