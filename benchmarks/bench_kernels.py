"""The kernels beside what torch offers for the same work, and beside a copy; on the GPU when there is one.

python benchmarks/bench_kernels.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import harness
import torch
from harness import Spread, goal
from kernel_cases import MODELS, OPERATIONS, Case, accumulating, flat

from elche.kernels import reference

CPU_GOAL = 1.10  # time beside the best rival's in the same repeat
GPU_GOAL, GPU_GOAL_BYTES = 0.9, 25_000_000  # of a copy's bandwidth, for buckets from this size on


def timed(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Return the seconds of one call, over as many as fill `seconds`; the GPU's own clock on a GPU."""
    call()
    num_calls = max(1, int(seconds / max(run(call, 1, device), 1e-6)))
    return run(call, num_calls, device) / num_calls


def run(call: Callable[[], object], num_calls: int, device: torch.device) -> float:
    """Return the seconds that `num_calls` calls took."""
    if device.type == "cuda":
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        for _ in range(num_calls):
            call()
        ended.record()
        ended.synchronize()
        return begun.elapsed_time(ended) / 1e3
    started = time.perf_counter()
    for _ in range(num_calls):
        call()
    return time.perf_counter() - started


Repeats = list[dict[str, float]]  # by method, the seconds of a call


def measure(model: str, device: torch.device, args: argparse.Namespace) -> dict[str, Repeats]:
    """Return the times of each operation's methods; a copy of the bucket is one of them."""
    case = Case(MODELS[model], device)
    result = {}
    for name, (ways, _) in OPERATIONS.items():
        methods = {**ways(case), "copy": lambda: case.other_n.copy_(case.dense_n)}
        result[name] = harness.alternate(in_turn(methods, device, args.seconds), args.repeats)
    methods = {name: call for name, (call, _) in flat(case).items()}
    methods["copy"] = lambda: case.other_n.copy_(case.dense_n)
    result["flat"] = harness.alternate(in_turn(methods, device, args.seconds), args.repeats)
    return result


def in_turn(
    methods: dict[str, Callable[[], object]], device: torch.device, seconds: float
) -> dict[str, Callable[[], float]]:
    """Wrap each method so that it returns its time."""
    return {name: (lambda call=call: timed(call, device, seconds)) for name, call in methods.items()}


def is_exact(device: torch.device) -> bool:
    """Return whether overwriting and unpacking have the reference's bits; on a GPU adding, too."""
    case = Case(MODELS["160 tensors, 26 MB"], device)
    judge_n, judge = torch.zeros_like(case.bucket_n), [torch.empty_like(grad) for grad in case.grads]
    equal = True
    for accumulate in (False, True) if device.type == "cuda" else (False,):
        case.scale_accumulate(accumulate)
        reference.scale_accumulate_(judge_n, case.layout, case.grads, case.weight, accumulate=accumulate)
        equal &= torch.equal(case.bucket_n, judge_n)
    reference.unpack_(judge, judge_n, case.layout, 1.0)
    case.unpack()
    return equal and all(torch.equal(a, b) for a, b in zip(case.grads, judge, strict=True))


def launches(device: torch.device) -> dict[str, int] | None:
    """Count the GPU's kernels in one accumulating call of each method; None without a GPU."""
    if device.type != "cuda":
        return None
    counts = {}
    for name, call in accumulating(Case(MODELS["160 tensors, 26 MB"], device)).items():
        call()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call()
            torch.cuda.synchronize()
        counts[name] = sum(event.device_type.name == "CUDA" for event in profile.events())
    return counts


def spread(repeats: Sequence[dict[str, float]], what: Callable[[dict[str, float]], float]) -> Spread:
    """Return the spread over the repeats of a number that is computed within each."""
    return Spread.of([what(repeat) for repeat in repeats])


def rows_of(model: str, name: str, repeats: list[dict[str, float]], on_gpu: bool) -> list[str]:
    """Return one line of the first table."""
    num_bytes, num_elements = OPERATIONS[name][1], sum(MODELS[model])
    rivals = [method for method in repeats[0] if method not in ("elche", "copy")]
    best = spread(repeats, lambda one: one["elche"] / min(one[rival] for rival in rivals))
    fraction = spread(repeats, lambda one: num_bytes / 8 * one["copy"] / one["elche"])
    if on_gpu:
        outcome = goal(fraction.median >= GPU_GOAL) if 4 * num_elements >= GPU_GOAL_BYTES else ""
    else:
        outcome = goal(best.median <= CPU_GOAL)
    speed = spread(repeats, lambda one: num_bytes * num_elements / one["elche"] / 1e9)
    times = ", ".join(f"{method} {spread(repeats, by(method)).format('.0f', 1e6)}" for method in rivals)
    mine = spread(repeats, by("elche")).format(".0f", 1e6)
    return [
        model,
        name,
        mine,
        times,
        speed.format(".1f"),
        fraction.format(".2f"),
        best.format(".2f"),
        outcome,
    ]


def by(method: str) -> Callable[[dict[str, float]], float]:
    """Return what picks a method's time out of a repeat."""
    return lambda one: one[method]


def flat_rows(model: str, repeats: list[dict[str, float]], bytes_of: dict[str, int]) -> list[list[str]]:
    """Return the second table's lines of one model."""
    num_elements = sum(MODELS[model])
    return [
        [
            model,
            name,
            spread(repeats, by(name)).format(".0f", 1e6),
            spread(repeats, lambda one, n=name, b=moved: b * num_elements / one[n] / 1e9).format(".1f"),
            spread(repeats, lambda one, n=name, b=moved: b / 8 * one["copy"] / one[n]).format(".2f"),
        ]
        for name, moved in bytes_of.items()
    ]


def render(result: dict[str, Any], on_gpu: bool, exact: bool, counts: dict[str, int] | None) -> str:
    """Return the report's text."""
    bytes_of = {name: moved for name, (_, moved) in flat(Case([1], torch.device("cpu"))).items()}
    setting = harness.paragraph(f"""
        float32 gradients and buckets. us: median (20 % to 80 %) over alternated repeats, of as many calls as
        fill the time given. GB/s by the bytes that the operation has to read and write; "of a copy": that,
        beside a copy of the bucket in the same repeat. "of the best": elche's time over the fastest rival's,
        in the same repeat. Goal on the CPU: at most {CPU_GOAL} of the best. Goal on a GPU: {GPU_GOAL} of a
        copy's bandwidth from {GPU_GOAL_BYTES // 10**6} MB on, one launch per bucket, reference's bits.""")
    head = ["model", "", "elche, us", "rivals, us", "GB/s", "of a copy", "of the best", "goal"]
    rows = [
        rows_of(model, name, measured[name], on_gpu)
        for model, measured in result.items()
        for name in OPERATIONS
    ]
    checks = f"The reference's bits on 160 tensors: {goal(exact)}."
    if counts is not None:
        said = ", ".join(f"{name} {count}" for name, count in counts.items())
        checks += f" Launches of one accumulation: {said}; one per bucket: {goal(counts['elche'] == 1)}."
    flat_head = ["model", "", "us", "GB/s", "of a copy"]
    lines = [
        row for model, measured in result.items() for row in flat_rows(model, measured["flat"], bytes_of)
    ]
    return "\n\n".join(
        [setting, harness.markdown_table(head, rows), checks, harness.markdown_table(flat_head, lines)]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.02, help="of calls for one time")
    args = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    torch.set_num_threads(1)  # a rank has its core; on a GPU they do not matter
    name = torch.cuda.get_device_name(device) if on_gpu else "the CPU, one thread"
    header = {**harness.conditions(), "device": name}
    result = {model: measure(model, device, args) for model in MODELS}
    exact, counts = is_exact(device), launches(device)
    harness.report(
        "kernels_gpu" if on_gpu else "kernels",
        header,
        render(result, on_gpu, exact, counts),
        {"seconds": result, "exact": exact, "launches": counts},
    )


if __name__ == "__main__":
    main()
