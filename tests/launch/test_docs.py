"""Every elche-run line of the documents and of the job files is one that elche-run takes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from elche.mpi_launch.forwarding import KEPT_HERE, KEPT_HERE_PREFIXES
from elche.mpi_launch.parser import build_parser

ROOT = Path(__file__).parents[2]
LAUNCHING, README = ((ROOT / name).read_text() for name in ("docs/launching.md", "README.md"))
LINES = sorted({
    line.strip()
    for text in (LAUNCHING, README)
    for line in re.findall(r"^    (elche-run [^#\n]*)", text, re.M)
    if line.strip() != "elche-run --help"
})  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_TASKS_PER_NODE": "4(x2)",
    "SLURM_NTASKS": "8",
    "SLURM_SUBMIT_DIR": "/work",
}
ON_TWO_NODES = ["--host", "node1:4,node2:4"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with all that the lines take for granted."""
    for name in ("train.py", "package/train.py", "examples/char_lm.py", "keys/cluster"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "hosts.txt").write_text("node1 slots=4\nnode2:4\n")
    for name, prints in (
        ("hosts.sh", "node1:4"),
        ("discover_hosts.sh", "node1"),
        ("mpiexec", "HYDRA build details:"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{prints}'\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def shown(place: Path, line: str, **shell: str) -> list[str]:
    """The words of the command that a line would start."""
    for elsewhere in ("/opt/mpich/bin", "/etc/mpi", "/work"):
        line = line.replace(elsewhere, str(place))
    program, *words = shlex.split(line)
    assert program == "elche-run"
    ran = subprocess.run(
        [sys.executable, "-m", "elche.mpi_launch", "--dry-run", *words],
        env={**os.environ, "TMPDIR": str(place), **shell},
        cwd=place,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return shlex.split(ran.stdout.splitlines()[-1])


def after(words: list[str], option: str, number: int = 1) -> list[str]:
    start = words.index(option)
    return words[start : start + 1 + number]


@pytest.mark.usefixtures("ulfm")
@pytest.mark.parametrize("line", LINES)
def test_each_line_is_taken(line: str, place: Path) -> None:
    shell = SLURM if line == "elche-run train.py" else {}
    words = shown(place, line, **shell)
    script = re.search(r"(train\.py|-m package\.train)( .*)?$", line)
    assert script is not None
    assert words[-len(script[0].split()) :] == script[0].split()


def test_there_are_as_many_lines_as_one_would_think() -> None:
    assert len(LINES) >= 18


@pytest.mark.usefixtures("ulfm")
def test_the_job_file_for_slurm_starts_what_it_asks_for(place: Path) -> None:
    path = ROOT / "examples" / "train.sbatch"
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", path.read_text(), re.M))
    assert (asked["nodes"], asked["ntasks-per-node"], asked["gpus-per-node"]) == ("2", "4", "4")
    (line,) = re.findall(r"^exec (elche-run .*)$", path.read_text(), re.M)
    words = shown(place, os.path.expandvars(line.replace("$SLURM_JOB_ID", "7")), **SLURM)
    assert after(words, "--host") == ON_TWO_NODES
    assert after(words, "-np") == ["-np", "8"]
    assert after(words, "--output") == ["--output", str(place / "logs" / "7")]


@pytest.mark.usefixtures("ulfm")
def test_the_job_file_for_kubernetes_starts_what_it_asks_for(place: Path) -> None:
    text = (ROOT / "examples" / "mpijob.yaml").read_text()
    ((command, args),) = re.findall(r"^ +command: (\[.*\])\n +args: (\[.*\])$", text, re.M)
    slots, gpus, *replicas = (
        re.findall(rf"{key}: (\d+)", text) for key in ("slotsPerWorker", "nvidia.com/gpu", "replicas")
    )
    assert (slots, gpus, replicas) == (["4"], ["4"], [["1", "2"]])
    names = [f"elche-worker-{number}.elche.default.svc" for number in range(2)]
    (place / "hostfile").write_text("".join(f"{name} slots=4\n" for name in names))
    operator = {
        "OMPI_MCA_orte_default_hostfile": str(place / "hostfile"),
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "K_MPI_JOB_ROLE": "launcher",
    }
    words = shown(place, shlex.join(json.loads(command) + json.loads(args)), **operator)
    assert after(words, "--host") == ["--host", ",".join(f"{name}:4" for name in names)]
    assert after(words, "-np") == ["-np", "8"]
    assert after(words, "plm_ssh_agent") == ["plm_ssh_agent", "ssh -o ConnectionAttempts=10"]
    assert after(words, "prte_keep_fqdn_hostnames") == ["prte_keep_fqdn_hostnames", "1"]
    assert after(words, "prte_if_include") == ["prte_if_include", "eth0"]
    assert "K_MPI_JOB_ROLE" not in words


def test_what_stays_on_its_machine_is_in_the_document() -> None:
    for name in (*KEPT_HERE, *KEPT_HERE_PREFIXES):
        assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", LAUNCHING), name


def test_options_that_the_document_names_exist() -> None:
    options = set(build_parser()._option_string_actions) | {"--pid"}
    text = re.sub(r"(?s)\| horovodrun.*?\n\n", "", LAUNCHING)
    foreign = {"--mpi", "--nodes", "--ntasks-per-node", "--epochs"}  # srun's, salloc's, a script's
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert named - foreign <= options
    assert {"--host-discovery-script", "--output-filename", "--reset-limit"} <= named
