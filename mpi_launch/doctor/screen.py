"""The one screen: what was found, line by line, then each problem with its remedy."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator
from typing import Any

from elche.config import DEFAULT_ANCHOR
from elche.mpi_launch.doctor.findings import verdict
from elche.mpi_launch.doctor.libraries import usable_gpus
from elche.mpi_launch.doctor.probes import MISSING
from elche.mpi_launch.doctor.problem import Facts, Level, Problem
from elche.policy.devices import GIB, slowest_slot, spec_score

WIDTHS, HEIGHT = (40, 80), 40
LABEL = 10
MOST_GPU_LINES, MOST_INTERFACES = 4, 6
COLOURS = {Level.NOTE: "36", Level.LIMIT: "33", Level.FATAL: "31"}
MORE = "and {} more: elche-doctor --json"


def draw(
    facts: Facts, problems: list[Problem], *, width: int = 80, height: int = HEIGHT, coloured: bool = False
) -> str:
    """Draw the screen.

    Args:
        facts: see `elche.mpi_launch.doctor`.
        problems: worst first.
        width: the terminal's; from 40 to 80 columns of it are used.
        height: most lines; problems beyond are counted.
        coloured: whether the terminal shows colours.

    Returns:
        The lines, without a last line break.
    """
    width = min(max(width, WIDTHS[0]), WIDTHS[1])
    elche = facts["elche"]
    lines = _wrapped(f"elche {elche['version']}, Python {elche['python']}: {verdict(problems)}", width, "")
    lines.append("")
    for label, text in _rows(facts):
        lines += _wrapped(f"{label:{LABEL}}{text}", width)
    drawn = [_problem(problem, width, coloured) for problem in problems]
    room = height - len(lines) - 1
    if sum(map(len, drawn)) > room:
        sizes = itertools.accumulate(map(len, drawn))
        num_shown = sum(size <= room - 1 for size in sizes)
        drawn = [*drawn[:num_shown], [MORE.format(len(drawn) - num_shown)]]
    return "\n".join([*lines, *([""] if drawn else []), *itertools.chain(*drawn)])


def _problem(problem: Problem, width: int, coloured: bool) -> list[str]:
    name = problem.level.name.lower()
    first, *rest = _wrapped(f"{name:{LABEL}}{problem.text}", width)
    if coloured:
        first = f"\033[{COLOURS[problem.level]}m{name}\033[0m{first[len(name) :]}"
    return [first, *rest, *_wrapped(f"{'':{LABEL}}-> {problem.remedy}", width, " " * (LABEL + 3))]


def _wrapped(text: str, width: int, indent: str = " " * LABEL) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)


def _rows(facts: Facts) -> Iterator[tuple[str, str]]:
    yield "MPI", _mpi(facts["mpi"])
    yield "mpi4py", _library(facts["mpi4py"], _linked(facts["mpi4py"]))
    torch = facts["torch"]
    cuda = f"for CUDA {torch['cuda']}" if torch.get("cuda") else "without CUDA"
    yield "torch", f"{_library(torch, cuda)}; numpy {_library(facts['numpy'])}"
    yield "triton", _library(facts["triton"])
    yield "cupy", _cupy(facts["cupy"])
    yield from zip(itertools.chain(["GPUs"], itertools.repeat("")), _gpus(facts), strict=False)
    yield "cores", _cores(facts)
    yield "memory", f"{_folder(facts['shared_memory'])}; {_folder(facts['temporary'])}"
    yield "network", _network(facts)
    yield from zip(("live test", "", ""), _live(facts["live"]), strict=False)


def _mpi(mpi: dict[str, Any]) -> str:
    if "error" in mpi:
        return str(mpi["error"])
    ulfm = "ULFM" if mpi["kind"] == "ULFM" else "no ULFM"
    cuda = {True: ", CUDA-aware", False: ", not CUDA-aware", None: ""}[mpi["is_cuda_aware"]]
    name = "unknown" if mpi["family"] is None else f"{mpi['family']} {mpi['version']}"
    return f"{name}, {ulfm}{cuda}: {mpi['mpirun']}"


def _library(found: dict[str, Any], more: str = "") -> str:
    if "error" in found:
        return "not installed" if found["error"] == MISSING else f"broken: {found['error']}"
    return f"{found['version']}{', ' * bool(more)}{more}"


def _linked(mpi4py: dict[str, Any]) -> str:
    family = mpi4py.get("family")
    return "with an unknown MPI" if family is None else f"with {family} {mpi4py['library_version']}"


def _cupy(cupy: dict[str, Any]) -> str:
    if "version" not in cupy:
        return f"not used: {cupy.get('error') or cupy.get('reason') or 'torch cannot be imported'}"
    nccl = cupy.get("nccl")
    text = f"{cupy['version']}, for CUDA {cupy['cuda'] // 1000}; "
    return text + ("no NCCL" if nccl is None else f"NCCL {_nccl_version(nccl)}")


def _nccl_version(number: int) -> str:
    """22703 -> 2.27.3, as NCCL counts since 2.9."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _gpus(facts: Facts) -> Iterator[str]:
    gpus = usable_gpus(facts)
    there = gpus or facts["driver"].get("gpus") or []
    if not there:
        yield "none: ranks train on the CPU"
        return
    kinds = [list(alike) for _, alike in itertools.groupby(there, _describe)]
    for alike in kinds[:MOST_GPU_LINES]:
        first, last = alike[0]["index"], alike[-1]["index"]
        yield f"{first if len(alike) == 1 else f'{first} to {last}'}: {_describe(alike[0])}"
    if len(kinds) > MOST_GPU_LINES:
        yield MORE.format(f"{len(kinds) - MOST_GPU_LINES} kinds")
    if not gpus:
        yield "torch can use none of them"
        return
    slot = slowest_slot([gpu["index"] for gpu in gpus], gpus)
    anchor = DEFAULT_ANCHOR["gradients"]
    yield f"a rank on each: rank {slot} anchors, {anchor} batches, until speeds are measured"


def _describe(gpu: dict[str, Any]) -> str:
    name = gpu.get("name", f"compute capability {gpu['sm_major']}.{gpu['sm_minor']}")
    return f"{name}, {gpu['vram_bytes'] / GIB:.0f} GiB, spec score {spec_score(gpu):.0f}"


def _cores(facts: Facts) -> str:
    processors, threads = facts["processors"], facts["shell"]["omp_num_threads"]
    cores, cpus, allowed = (processors[name] for name in ("cores", "cpus", "allowed"))
    quota = "" if processors["quota"] is None else f", the time of {processors['quota']:g}"
    omp = "OMP_NUM_THREADS unset" if threads is None else f"OMP_NUM_THREADS={threads}"
    torch = f", torch takes {facts['torch']['threads']}" if "threads" in facts["torch"] else ""
    return (
        f"{cores}, {allowed} of {cpus} CPUs{quota}; {omp}{torch}. "
        f"elche-run binds up to {cores} ranks as mpirun does, more to nothing"
    )


def _folder(folder: dict[str, Any]) -> str:
    if "free_bytes" not in folder:
        return f"no {folder['path']}"
    free, total = folder["free_bytes"] / GIB, folder["total_bytes"] / GIB
    return (
        f"{folder['path']} {free:.1f} of {total:.1f} GiB free{'' if folder['is_writable'] else ', read-only'}"
    )


def _network(facts: Facts) -> str:
    host = facts["host"]
    up = [each for each in facts["interfaces"] if each["is_up"] and each["address"] is not None]
    named = [f"{each['name']} {each['address']}" for each in up[:MOST_INTERFACES]]
    if len(up) > MOST_INTERFACES:
        named.append(f"{len(up) - MOST_INTERFACES} more")
    name = f"{host.get('name', 'host')} is {host.get('address', 'not resolved')}"
    return f"{name}; {', '.join(named) or 'no interface is up'}"


def _live(live: dict[str, Any]) -> Iterator[str]:
    if "skipped" in live or "error" in live:
        yield f"not run: {live['skipped']}" if "skipped" in live else f"failed: {live['error']}"
        return
    rate = live["large_bytes"] / live["large_ms"] / 1e6
    threads, cpus = (max(rank[name] for rank in live["ranks"]) for name in ("threads", "cpus"))
    yield (
        f"{live['num_ranks']} ranks on {live['device']}, threads: {threads}, CPUs: {cpus} each; "
        f"training took {live['seconds']:.1f} s of {live['wall_seconds']:.1f}"
    )
    yield f"all-reduce of 4 B {live['small_ms']:.3f} ms, of 4 MiB {live['large_ms']:.2f} ms ({rate:.2f} GB/s)"
    if live["next_update_ms"] is not None:
        yield f"a rank was killed: {live['next_update_ms']:.0f} ms to the others' next update"
