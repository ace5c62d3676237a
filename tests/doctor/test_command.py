"""`elche-doctor` as it is called: options, exit codes, streams, broken machines, and one real run."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from doctor_rig import ON_GPUS, WELL, well_but

from elche.mpi_launch.doctor import __main__ as command
from elche.mpi_launch.doctor.facts import mpirun_of, why_not_live

DOCTOR = [sys.executable, "-m", "elche.mpi_launch.doctor"]
SECONDS = 240.0


def doctor(
    *options: str, env: dict[str, str] | None = None, **streams: Any
) -> subprocess.CompletedProcess[str]:
    streams = {"capture_output": True, **streams}
    variables = {**os.environ, **(env or {})}
    return subprocess.run(
        [*DOCTOR, *options], env=variables, text=True, timeout=SECONDS, check=False, **streams
    )


@pytest.fixture
def facts(monkeypatch):
    """`facts(found)`: let the command find them, an exception be raised."""

    def let(found: Any) -> None:
        def gather(*_: object, **__: object) -> Any:
            if isinstance(found, BaseException):
                raise found
            return found

        monkeypatch.setattr(command, "gather", gather)

    return let


@pytest.mark.parametrize(
    ("found", "code", "first"),
    [
        (WELL, 0, "elche 0.1.0, Python 3.12.1: all well"),
        (well_but(root={"is_root": True}), 0, "elche 0.1.0, Python 3.12.1: all well"),
        (well_but(processors={"quota": 1.0}), 1, "elche 0.1.0, Python 3.12.1: works, with limits: CPU quota"),
        (well_but(loopback=False), 2, "elche 0.1.0, Python 3.12.1: cannot train: loopback"),
    ],
)
def test_the_exit_code_and_the_first_line(facts, capsys, found, code, first):
    facts(found)
    assert command.main([]) == code
    assert capsys.readouterr().out.splitlines()[0] == first


def test_json_is_one_document_with_everything(facts, capsys):
    facts(well_but(loopback=False, **ON_GPUS))
    assert command.main(["--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["facts"] == well_but(loopback=False, **ON_GPUS)
    assert (document["verdict"], document["exit_code"]) == ("cannot train: loopback", 2)
    assert [found["level"] for found in document["findings"]] == ["fatal"]


def test_ctrl_c_and_faults_of_its_own_are_no_verdicts(facts, capsys):
    facts(KeyboardInterrupt())
    assert command.main([]) == 130
    facts(RuntimeError("a fault"))
    assert command.main([]) == 70
    assert capsys.readouterr().err.splitlines()[-1] == "RuntimeError: a fault"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--foo"], "unrecognized arguments: --foo"),
        (["--js"], "unrecognized arguments: --js"),
        (["train.py"], "unrecognized arguments: train.py"),
        (["--deadline-seconds", "0"],
         "argument --deadline-seconds: must be a number of seconds above 0, got '0'"),
        (["--deadline-seconds"], "argument --deadline-seconds: expected one argument"),
        (["--mpirun", "/no/such"], "--mpirun must be a program, got '/no/such'"),
    ],
)  # fmt: skip
def test_a_bad_option_is_named_with_the_remedy(capsys, options, said):
    assert command.main(options) == 64
    assert capsys.readouterr().err == f"elche-doctor: {said}; elche-doctor --help lists the options\n"


@pytest.mark.parametrize(
    ("topics", "why"),
    [
        ({}, None),
        ({"root": {"is_root": True}, "processors": {"quota": 1.0}}, None),
        ({"loopback": False}, "it could not succeed"),
        ({"shell": {"launcher": "PMI_RANK"}}, "under an MPI launcher"),
    ],
)
def test_what_forbids_the_live_test(topics, why):
    assert why_not_live(well_but(**topics)) == why


def test_the_mpirun_of_a_library(tmp_path):
    library, mpirun = tmp_path / "lib" / "libmpi.so.40", tmp_path / "bin" / "mpirun"
    assert [mpirun_of(None), mpirun_of(str(library))] == [None, None]
    mpirun.parent.mkdir()
    mpirun.touch()
    assert mpirun_of(str(library)) == str(mpirun)


def test_colours_only_where_they_are_wanted(facts, capsys, monkeypatch):
    facts(well_but(root={"is_root": True}))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    coloured = {}
    for name, value in (("TERM", "xterm"), ("TERM", "dumb"), ("NO_COLOR", "1")):
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv(name, value)
        command.main([])
        coloured[value] = "\033[36mnote\033[0m" in capsys.readouterr().out
    assert coloured == {"xterm": True, "dumb": False, "1": False}


# From here on the real one, with real children.


def test_a_broken_torch_is_a_finding(tmp_path):
    (tmp_path / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    ran = doctor("--json", env={"PYTHONPATH": str(tmp_path)})
    document = json.loads(ran.stdout)
    assert (ran.returncode, document["exit_code"], document["verdict"]) == (
        2,
        2,
        "cannot train: torch broken",
    )
    assert document["findings"][0] == {
        "level": "fatal",
        "about": "torch broken",
        "problem": f"torch cannot be imported (killed by signal 11), loaded from {tmp_path}/torch.py",
        "remedy": f"unset PYTHONPATH, which leads to {tmp_path}",
    }
    assert document["facts"]["live"] == {"skipped": "it could not succeed"}


def test_a_machine_on_which_nothing_works(tmp_path):
    for name in ("numpy", "torch", "mpi4py", "triton"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is ill')\n")
    ran = doctor(env={"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "many"})
    assert ran.returncode == 2
    first = " ".join(ran.stdout.partition("\n\n")[0].split())
    assert first.endswith("cannot train: numpy broken, torch broken, mpi4py broken")


def test_a_hanging_mpirun_is_a_finding(tmp_path):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\nsleep 1000\n")
    mpirun.chmod(0o755)
    ran = doctor("--json", "--mpirun", str(mpirun), "--deadline-seconds", "5")
    found = {problem["about"]: problem["problem"] for problem in json.loads(ran.stdout)["findings"]}
    assert ran.returncode == 2
    assert found["no mpirun"] == f"{mpirun} --version: no end within 5 s"


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_closed_stream(stream):
    number = ["stdin", "stdout", "stderr"].index(stream)
    ran = doctor("--no-live", "--json", preexec_fn=lambda: os.close(number))
    assert ran.returncode in (0, 1)
    assert (ran.stdout == "") == (stream == "stdout")
    assert ran.stderr == ""


def test_a_reader_that_leaves_early():
    with subprocess.Popen([*DOCTOR, "--no-live"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode in (0, 1), err) == (True, b"")


def test_who_looks_on_sees_that_it_works_until_there_is_something_to_read():
    ours, theirs = pty.openpty()
    doctor("--no-live", capture_output=False, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    assert os.read(ours, 1000) == b"asking MPI, torch and the system ...\r\x1b[K"
    os.close(ours)


def test_a_full_disk_is_no_verdict():
    with Path("/dev/full").open("w") as full:
        ran = doctor("--no-live", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert ran.returncode == 70
    assert "No space left on device" in ran.stderr


@pytest.mark.usefixtures("ulfm")
def test_a_real_run_trains_and_survives_a_killed_rank(tmp_path):
    """Where ELCHE_LOG names a log, the live test leaves it alone."""
    log = tmp_path / "run.jsonl"
    ran = doctor("--json", "--deadline-seconds", "120", env={"ELCHE_LOG": str(log)})
    document = json.loads(ran.stdout)
    live = document["facts"]["live"]
    assert "error" not in live
    assert live["num_ranks"] == live["asked"]
    assert live["num_ranks_left"] == live["asked"] - 1
    assert live["sum"] == live["asked"]
    assert 0 < live["next_update_ms"] < 60_000
    assert live["small_ms"] > 0
    assert len({rank["pid"] for rank in live["ranks"]}) == live["asked"]
    assert ran.returncode == document["exit_code"]
    assert ran.returncode in (0, 1)
    assert not log.exists()
