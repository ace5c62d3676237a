"""What a child process answers: rightly, with rubbish around it, half, not at all, or by a crash."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from waiting import is_alive, until

from elche.mpi_launch.doctor import children
from elche.mpi_launch.doctor.children import Ended, run_all
from elche.mpi_launch.doctor.probes import ALL, CUPY, MARK, ask, command, one_line, read

PLENTY = 60.0
TORCH = """
import types, warnings
__version__ = "9.9"
version = types.SimpleNamespace(cuda="12.8")
class Sum:
    def __init__(self, value): self.value = value
    def numpy(self): return self
    def sum(self): return self
    def item(self): return self.value
def get_num_threads(): return 3
def ones(n): return Sum(n)
def arange(end, device):
    if device == "cuda:1":
        raise RuntimeError("CUDA error: no kernel image\\nmore of it")
    return Sum(6.0 if device == "cuda:0" else 5.0)
class cuda:
    def is_available(): return True
    def device_count():
        warnings.warn("one is odd")
        return 3
    def get_device_properties(index):
        return types.SimpleNamespace(name="Fake", major=8, minor=6, total_memory=24)
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """`library(name, source)`: a module of that name comes before any other in child processes."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(name: str, source: str) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        return path

    return write


def answer(name: str, seconds: float = PLENTY) -> dict:
    return ask({name: command(name, ALL[name])}, seconds)[name]


def test_a_library_tells_its_version_and_where_it_is(library):
    path = library("triton", "__version__ = '3.3'")
    assert answer("triton") == {"version": "3.3", "path": str(path)}


def test_what_a_library_prints_is_no_answer(library):
    noise = f"import sys\nprint('{MARK}rubbish')\nprint('no line break', end='')\n__version__ = '1'\n"
    path = library("triton", f"{noise}import atexit; atexit.register(print, 'bye')")
    assert answer("triton") == {"version": "1", "path": str(path)}


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise ImportError('libx.so: not found\\n  in twenty\\n  lines')",
         "ImportError: libx.so: not found in twenty lines"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by signal 11"),
        ("import os; os._exit(0)", "it ends before it has answered"),
        ("import sys; sys.stderr.write('first\\nno driver\\n'); sys.exit(3)", "exit code 3: no driver"),
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("", "AttributeError: module 'triton' has no attribute '__version__'"),
    ],
)  # fmt: skip
def test_a_broken_library_says_how_and_where(library, source, error):
    path = library("triton", source)
    assert answer("triton") == {"path": str(path), "error": error}


def test_a_library_that_is_not_there_is_missing():
    assert ask({"x": command("no_such_library", ALL["numpy"])}, PLENTY)["x"] == {
        "path": None,
        "error": "missing",
    }


def test_a_library_that_hangs_is_given_up(library):
    library("triton", "import time\ntime.sleep(1000)")
    assert answer("triton", 2.0)["error"] == "no end within 2 s"


def test_what_does_not_end_when_asked_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "REAP_SECONDS", 0.1)
    stubborn = f"trap '' TERM; echo $$ > {tmp_path}/pid; while true; do sleep 1000; done"
    assert run_all({"x": ["sh", "-c", stubborn]}, 3.0)["x"].code is None
    until(lambda: not is_alive(int((tmp_path / "pid").read_text())))


def test_an_inherited_output_keeps_nobody_waiting(tmp_path):
    """A pipe would stay open as long as the grandchild lives, and it is ended with its group."""
    shell = f"sleep 1000 & echo $! > {tmp_path}/pid; echo done"
    begun = time.monotonic()
    ended = run_all({"x": ["sh", "-c", shell]}, PLENTY)["x"]
    assert (ended, time.monotonic() - begun < PLENTY / 2) == (Ended(0, "done\n", ""), True)
    until(lambda: not is_alive(int((tmp_path / "pid").read_text())))


def test_commands_run_side_by_side(tmp_path):
    """Each waits for the other's file."""
    for_other = "import pathlib, sys, time\nmine, other = map(pathlib.Path, sys.argv[1:])\nmine.touch()\n"
    program = f"{for_other}while not other.exists(): time.sleep(0.01)"
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    ended = run_all(
        {"a": [sys.executable, "-c", program, a, b], "b": [sys.executable, "-c", program, b, a]}, PLENTY
    )
    assert [each.code for each in ended.values()] == [0, 0]


def test_what_cannot_be_started_has_ended():
    assert run_all({"x": ["/no/such/program"]}, PLENTY)["x"].code == 127


def test_no_descriptor_is_left_open():
    before = len(list(Path("/proc/self/fd").iterdir()))
    run_all({"x": ["true"], "y": ["/no/such/program"]}, PLENTY)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_an_answer_before_a_crash_is_kept(number):
    out = f'\n{MARK}{{"version": "2.0"}}\n'
    assert read(Ended(-number, out), 1.0) == {"version": "2.0", "error": f"killed by signal {number}"}


def test_a_text_is_one_line_and_not_too_long():
    assert one_line("a\n  b") == "a b"
    assert one_line("x" * 200, longest=10) == "xxxxxxx..."


def test_torch_is_asked_as_training_would_use_it(library):
    library("torch", TORCH)
    found = answer("torch")
    del found["path"]
    gpu = {"name": "Fake", "sm_major": 8, "sm_minor": 6, "vram_bytes": 24}
    assert found == {
        "version": "9.9",
        "cuda": "12.8",
        "threads": 3,
        "cuda_told": "one is odd",
        "gpus": [
            {**gpu, "index": 0, "error": None},
            {**gpu, "index": 1, "error": "CUDA error: no kernel image"},
            {**gpu, "index": 2, "error": "it sums 0, 1, 2, 3 to something else than 6"},
        ],
    }


def test_cupy_is_judged_in_trainings_words(library):
    library("cupy", "raise ImportError('no libcudart')")
    found = ask({"cupy": command("cupy", CUPY, "12.8")}, PLENTY)["cupy"]
    assert found == {
        "reason": "CuPy cannot be imported (no libcudart): pip install 'elche[cuda12]' (cupy-cuda12x)"
    }


def test_mpi_is_asked_without_being_started():
    found = answer("mpi4py")
    assert "error" not in found
    assert Path(found["libmpi"]).name.startswith("libmpi")
    assert found["library"].splitlines()[0] != ""


def test_the_host_and_the_driver_answer():
    assert answer("host")["name"] == os.uname().nodename
    assert set(answer("driver")) == {"gpus"}
