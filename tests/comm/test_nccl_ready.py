"""Whether NCCL can be used, and the one line that says why not."""

from __future__ import annotations

import builtins
import sys
import warnings

import pytest
from fake_cupy import FakeCupy

from elche.comm import memory
from elche.comm.nccl_ready import Ready, agree, find, import_cupy, why_not

INSTALL_12 = "pip install 'elche[cuda12]' (cupy-cuda12x)"
INSTALL_13 = "pip install 'elche[cuda13]' (cupy-cuda13x)"


def fails(error):
    def load():
        raise error

    return load


@pytest.mark.parametrize(
    ("cuda", "load", "reason"),
    [
        ("12.8", FakeCupy, None),
        ("13.0", lambda: FakeCupy(built=13000), None),
        (None, FakeCupy, "PyTorch was not built for CUDA"),
        ("12.8", fails(ModuleNotFoundError("cupy")), f"CuPy is not installed: {INSTALL_12}"),
        ("13.0", fails(ModuleNotFoundError("cupy")), f"CuPy is not installed: {INSTALL_13}"),
        (
            "12.8",
            fails(ImportError("libcuda.so.1:\n cannot open")),
            f"CuPy cannot be imported (libcuda.so.1: cannot open): {INSTALL_12}",
        ),
        (
            "13.0",
            FakeCupy,
            f"CuPy is for CUDA 12, PyTorch for CUDA 13: {INSTALL_13} in place of cupy-cuda12x",
        ),
        (
            "12.8",
            lambda: FakeCupy(built=13000),
            f"CuPy is for CUDA 13, PyTorch for CUDA 12: {INSTALL_12} in place of cupy-cuda13x",
        ),
        (
            "12.8",
            lambda: FakeCupy(available=False),
            "CuPy finds no NCCL: pip install nvidia-nccl-cu12",
        ),
        (
            "12.8",
            lambda: FakeCupy(driver=False),
            "CuPy finds no CUDA driver that it can use "
            "(cudaErrorInsufficientDriver: CUDA driver version is insufficient)",
        ),
    ],
)
def test_what_a_rank_lacks(cuda, load, reason):
    cupy, why = find(cuda, load)
    assert why == reason
    assert reason is not None or cupy.cuda.nccl.available


@pytest.mark.parametrize(
    ("ready", "why"),
    [
        ([Ready("a"), Ready("b")], None),
        ([Ready("a")], None),
        ([Ready("a"), Ready(), Ready("b")], "rank 1 has its model on no GPU"),
        ([Ready(), Ready("a", "no CuPy"), Ready()], "ranks 0, 2 have their model on no GPU"),
        ([Ready("a"), Ready("b", "CuPy is not installed")], "on rank 1 CuPy is not installed"),
        ([Ready("a", "x"), Ready("b", "y"), Ready("c", "x")], "on ranks 0, 2 x"),
        ([Ready("a"), Ready("b"), Ready("a")], "ranks 0, 2 share a GPU, which NCCL refuses"),
        ([Ready("a", "x"), Ready("a")], "on rank 0 x"),
    ],
)
def test_all_ranks_are_judged_together(ready, why):
    assert why_not(ready) == why
    n = len(ready)
    assert memory.run(n, lambda comm: agree(comm, ready[comm.rank])) == [why] * n


def test_a_long_explanation_is_told_in_a_line():
    def load():
        try:
            raise ImportError("libfoo.so: cannot open " + "shared object " * 50)
        except ImportError as error:
            raise ImportError("Failed to import CuPy.\n" * 20) from error

    _, reason = find("12.8", load)
    assert reason.startswith("CuPy cannot be imported (libfoo.so: cannot open shared object")
    assert len(reason) < 250


def test_a_warning_of_cupys_is_no_error(monkeypatch):
    """CuPy 14 warns when it is imported and finds no NCCL, and a script may have made warnings errors."""
    plain, asked = builtins.__import__, []

    def importing(name, *args, **kwargs):
        if name.partition(".")[0] != "cupy":
            return plain(name, *args, **kwargs)
        asked.append(name)
        warnings.warn("nccl library could not be loaded", UserWarning, stacklevel=2)
        return FakeCupy()

    monkeypatch.setattr(builtins, "__import__", importing)
    assert import_cupy().cuda.nccl.available
    assert asked == ["cupy", "cupy.cuda.nccl"]


def test_a_missing_cupy_is_a_missing_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert find("12.8") == (None, f"CuPy is not installed: {INSTALL_12}")
