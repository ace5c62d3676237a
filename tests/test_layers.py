"""The arrows of ARCHITECTURE.md, read from the imports themselves, and where files and functions split.

`complaints(name, source)` judges one file; it is shown small wrong sources first, then the whole tree.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("elche", "kernels", "mpi_launch")
OTHERS = ("tests", "examples", "benchmarks")

# Each layer and what it imports directly; what lies further down comes with it. elche/__init__.py stands
# above them all.
ARROWS: dict[str, set[str]] = {
    "training": {"elastic", "kernels"},
    "elastic": {"start", "mpi_launch"},
    "collectives": {"start", "kernels"},
    "start": {"world"},
    "world": {"process", "observe", "mpi_launch"},
    "process": {"comm"},
    "comm": {"policy"},
    "observe": {"policy"},
    "sim": {"policy"},
    "mpi_launch": {"policy"},
    "policy": {"errors", "events", "config"},
    "config": {"environment"},
    "environment": {"errors"},
    "errors": set(),
    "events": set(),
    "kernels": {"errors"},
}
# Policy is standard library only, so what it imports is too; the launcher runs where nothing else works.
STDLIB_ONLY = {"policy", "errors", "events", "config", "environment", "mpi_launch"}
HEAVY = {
    "mpi4py": ("elche/comm/mpi.py", "elche/comm/mpi_"),
    "cupy": ("elche/comm/nccl.py", "elche/comm/nccl_"),
    "triton": ("kernels/",),
    "torch": (
        "kernels/",
        "elche/training/",
        "elche/elastic/",
        "elche/collectives/",
        "elche/start.py",
        "elche/world.py",
    ),
}
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
CLOCKS_LOGS_AND_DICE = {"time", "datetime", "logging", "secrets", "uuid"}
NAMELESS = {"utils.py", "helpers.py", "common.py", "manager.py"}
FILE_LINES, FUNCTION_LINES = 300, 60


def complaints(name: str, source: str) -> list[str]:
    """Everything that is wrong with the file `name`, each with its line and what to do about it."""
    tree = ast.parse(source)
    found = list(size_complaints(name, source, tree))
    if name.startswith(SOURCES):
        found += import_complaints(name, tree)
        found += environment_complaints(name, tree)
    if layer_of(module_of(name)) == "policy":
        found += chance_complaints(tree)
    return [f"{name}:{complaint}" for complaint in found]


def size_complaints(name: str, source: str, tree: ast.AST) -> Iterator[str]:
    if name.rpartition("/")[2] in NAMELESS:
        yield "1: name the file after what it holds"
    if (lines := len(source.splitlines())) > FILE_LINES:
        yield f"1: {lines} lines, split the file ({FILE_LINES} at most)"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{node.lineno}: {node.name} has {lines} lines, split it ({FUNCTION_LINES} at most)"


def import_complaints(name: str, tree: ast.AST) -> Iterator[str]:
    if name == "elche/__init__.py":
        return  # may name everything; test_the_front_is_light tells whether it waits
    layer = layer_of(module_of(name))
    if layer is None:
        yield "1: no layer claims this file, see ARROWS"
        return
    for line, target in imports_of(name, tree):
        top = target.partition(".")[0]
        if top == "elche" and layer_of(target) not in within_reach(layer):
            yield f"{line}: {layer} may not import {target}"
        elif top != "elche" and layer in STDLIB_ONLY and top not in sys.stdlib_module_names:
            yield f"{line}: {layer} may not import {target}, it keeps to the standard library"
        elif top in HEAVY and not name.startswith(HEAVY[top]):
            yield f"{line}: {top} is imported only in {', '.join(HEAVY[top])}"


def environment_complaints(name: str, tree: ast.AST) -> Iterator[str]:
    if name == "elche/config.py":
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names = {node.attr}
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
        else:
            continue
        if names & ENVIRONMENT:
            yield f"{node.lineno}: only elche/config.py reads the environment"


def chance_complaints(tree: ast.AST) -> Iterator[str]:
    for line, target in imports_of("elche/policy/any.py", tree):
        top, _, rest = target.partition(".")
        if top in CLOCKS_LOGS_AND_DICE:
            yield f"{line}: policy may not import {top}; time and randomness come in as arguments"
        if top == "random" and rest not in ("", "Random"):
            yield f"{line}: {target} is unseeded, policy takes a random.Random"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "random" and node.attr != "Random":
            yield f"{node.lineno}: random.{node.attr} is unseeded, policy takes a random.Random"
        if isinstance(node, ast.Call) and ast.unparse(node) in ("random.Random()", "Random()"):
            yield f"{node.lineno}: Random() without a seed"


def module_of(name: str) -> str:
    """'kernels/unpack.py' -> 'elche.kernels.unpack': the name under which the file installs."""
    dotted = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return dotted if dotted.partition(".")[0] == "elche" else f"elche.{dotted}"


def layer_of(module: str) -> str | None:
    """'elche.comm.base.Comm' -> 'comm'; None: no layer, such as `elche` itself."""
    return next((part for part in module.split(".")[1:2] if part in ARROWS), None)


def within_reach(layer: str) -> set[str]:
    """The layer and everything down its chains."""
    return {layer}.union(*map(within_reach, ARROWS[layer]))


def imports_of(name: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of each import, wherever it stands: 'from .base import Comm' too."""
    package = module_of(name).split(".")
    if not name.endswith("/__init__.py"):
        package.pop()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, node.module] if node.module else base
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)


WRONG = [
    ("elche/comm/mpi.py", "import elche.training.window", "comm may not import elche.training.window"),
    ("elche/observe/jsonl.py", "from elche.comm.base import Comm", "observe may not import elche.comm.base"),
    ("elche/policy/ledger.py", "from elche import comm", "policy may not import elche.comm"),
    ("elche/policy/ledger.py", "from ..comm import base", "policy may not import elche.comm.base"),
    ("elche/comm/__init__.py", "from ..sim import rig", "comm may not import elche.sim.rig"),
    ("elche/training/loader.py", "import elche", "training may not import elche"),
    ("elche/elastic/run.py", "from elche import init", "elastic may not import elche.init"),
    ("kernels/drift.py", "def f():\n    from elche import events", "drift.py:2: kernels may not import"),
    ("mpi_launch/doctor.py", "import elche.comm.mpi", "mpi_launch may not import elche.comm.mpi"),
    ("mpi_launch/doctor.py", "import torch", "may not import torch, it keeps to the standard library"),
    ("elche/policy/cadence.py", "import numpy as np", "policy may not import numpy"),
    ("elche/events.py", "from numpy import array", "events may not import numpy.array"),
    ("elche/comm/base.py", "from mpi4py import MPI", "mpi4py is imported only in elche/comm/mpi.py"),
    ("elche/comm/mpi.py", "import cupy", "cupy is imported only in elche/comm/nccl.py"),
    ("elche/training/buckets.py", "import triton", "triton is imported only in kernels/"),
    ("elche/comm/mpi.py", "import torch.cuda", "torch is imported only in"),
    ("elche/extra.py", "", "no layer claims this file"),
    ("elche/extra/thing.py", "", "no layer claims this file"),
    (
        "elche/world.py",
        "import os\nos.environ['A']",
        "world.py:2: only elche/config.py reads the environment",
    ),
    ("mpi_launch/guard.py", "import os\nos.getenv('A')", "only elche/config.py reads the environment"),
    ("kernels/unpack.py", "from os import environ", "only elche/config.py reads the environment"),
    ("elche/policy/ledger.py", "from time import monotonic", "policy may not import time"),
    ("elche/policy/guards.py", "import logging", "policy may not import logging"),
    ("elche/policy/dispatch.py", "import random\nrandom.shuffle(x)", "random.shuffle is unseeded"),
    ("elche/policy/dispatch.py", "from random import shuffle", "random.shuffle is unseeded"),
    ("elche/policy/dispatch.py", "import random\nrandom.Random()", "Random() without a seed"),
    ("tests/unit/test_long.py", "pass\n" * 301, "301 lines, split the file"),
    ("examples/long.py", "def longest():\n" + "    pass\n" * 60, "longest has 61 lines"),
    ("elche/comm/utils.py", "", "name the file after what it holds"),
]
RIGHT = [
    ("elche/training/window.py", "from elche.elastic import run\nimport elche.errors, torch"),
    ("elche/training/buckets.py", "from elche.kernels import scale_accumulate_"),
    ("elche/training/loader.py", "from elche import world"),
    ("elche/comm/mpi.py", "from mpi4py import MPI\nfrom elche.comm.base import Comm"),
    ("elche/comm/memory.py", "from .base import Comm"),
    ("elche/__init__.py", "from elche.training.optimizer import DistributedOptimizer"),
    ("elche/policy/dispatch.py", "import random\nrandom.Random(7)\nfrom random import Random"),
    ("elche/config.py", "import os\nos.environ.get('ELCHE_LOG')"),
    ("examples/train.py", "import os, torch, triton, mpi4py\nos.environ['A'] = '1'"),
    ("elche/sim/rig.py", "def long():\n" + "    pass\n" * 59 + "pass\n" * 240),
]
TREE = sorted(
    str(path.relative_to(ROOT)) for folder in (*SOURCES, *OTHERS) for path in (ROOT / folder).rglob("*.py")
)


@pytest.mark.parametrize(("name", "source", "said"), WRONG)
def test_the_checker_refuses(name: str, source: str, said: str) -> None:
    found = complaints(name, source)
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(("name", "source"), RIGHT)
def test_the_checker_allows(name: str, source: str) -> None:
    assert complaints(name, source) == []


def test_the_tree_is_seen() -> None:
    assert {"elche/errors.py", "kernels/__init__.py", "mpi_launch/__init__.py"} <= set(TREE)


@pytest.mark.parametrize("name", TREE)
def test_every_file(name: str) -> None:
    found = complaints(name, (ROOT / name).read_text())
    assert not found, "\n".join(found)


def test_no_script_in_the_root() -> None:
    assert [path.name for path in ROOT.glob("*.py")] == ["setup.py"]


def test_the_front_is_light() -> None:
    program = "import sys, elche, elche.config, elche.policy; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "elche.config" in ran.stdout.split()
    assert not {*HEAVY, "numpy"} & set(ran.stdout.split())
