"""Hosts that come and go, and limits on changes, under the real mpirun."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from launch_rig import pids

RUN = "elche.mpi_launch"
LOST = {"event": "lost", "process": 1, "slot": 1, "cause": "died", "epoch": 0, "window": 5}
JOINED = {"event": "joined", "process": 1, "slot": 1, "sync_ms": 3}

pytestmark = pytest.mark.usefixtures("ulfm")


@pytest.fixture
def found(tmp_path: Path) -> Callable[[str], list[str]]:
    """`found(lines)`: the script finds these hosts from now on; returns the options that name it."""
    script, hosts = tmp_path / "hosts.sh", tmp_path / "hosts"
    script.write_text(f"#!/bin/sh\nexec cat {hosts}\n")
    script.chmod(0o755)

    def let(lines: str) -> list[str]:
        aside = tmp_path / "aside"
        aside.write_text(lines)
        aside.replace(hosts)
        return ["--host-discovery-script", str(script)]

    return let


def lines_until(job, last: str) -> list[str]:
    """What elche-run says, up to a line that begins so."""
    said = []
    while not (said and said[-1].startswith(f"elche-run: {last}")):
        said.append(job.process.stderr.readline())
        assert said[-1], f"it ended before {last!r}: {said}"
    return said


def test_a_job_grows_into_slots_that_come_and_tells_of_hosts(start, found):
    words = {"0": [["hear"], ["note", "grown"], ["hear"], ["note", "more"], ["wait_for", "go"]]}
    options = [*found("localhost:1\n"), "-np", "1", "--max-np", "3", "--grace-seconds", "0.5"]
    job = start(RUN, *options, words=words)
    job.wait_for("pid")
    found("localhost:2\n203.0.113.7:4\n")
    lines_until(job, "host 203.0.113.7 is new: it is used if the job starts again")
    job.wait_for("grown")
    found("localhost:9\n")
    job.wait_for("more")
    found("localhost:0\n")
    lines_until(
        job, "--host-discovery-script's output: the slots of localhost must be an integer of at least 1"
    )
    found("\n")
    lines_until(job, "host localhost is not named any more: its ranks go on, it is not used again")
    (job.folder / "go").touch()
    assert job.end()[0] == 0
    assert [note["heard"] for note in job.notes() if "heard" in note] == [
        [{"grow": 1, "ranks": 2}],
        [{"grow": 1, "ranks": 3}],
    ]


def test_a_job_that_died_starts_again_on_the_hosts_that_are_found_then(start, found):
    options = [*found("localhost:1\n"), "-np", "1", "--max-np", "2", "--restarts", "1"]
    job = start(RUN, *options, words={"0": [["hang_at_first"]], "*": []})
    pids(job, 1)
    mpirun = int(Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children").read_text().split()[0])
    found("localhost:2\n")
    os.kill(mpirun, signal.SIGKILL)
    code, err = job.end()
    assert code == 0
    assert "elche-run: starting again with 2 ranks on localhost:2; restarts left: 0\n" in err


def test_too_few_slots_end_the_wait(start, found):
    job = start(RUN, *found("localhost:1\n"), "-np", "2", "--elastic-timeout", "1.5", words=[])
    code, err = job.end()
    assert code == 4
    assert "elche-run: waiting for 2 slots, --host-discovery-script finds 1\n" in err
    assert "elche-run: 1 slots after 1.5 s, -np is 2\n" in err
    assert job.notes() == []


def test_a_stop_ends_the_wait(start, found):
    job = start(RUN, *found(""), "-np", "2", words=[])
    lines_until(job, "waiting for 2 slots")
    job.process.send_signal(signal.SIGINT)
    assert job.end() == (130, "elche-run: interrupted; exit code 130\n")


@pytest.mark.parametrize(
    ("limit", "told", "code"),
    [("0", [LOST], 1), ("1", [LOST, JOINED, JOINED], 1), ("2", [LOST, JOINED, JOINED], 0)],
)
def test_more_changes_than_the_limit_end_the_job(start, limit, told, code):
    tell = [["tell", message] for message in told]
    hear = [["hear"]] if code else []
    job = start(
        RUN, "-np", "2", "--reset-limit", limit, words={"0": [*tell, *hear], "1": [["wait_for", "go"]]}
    )
    if code:
        said = f"losses and entries: {int(limit) + 1}, --reset-limit allows {limit}: all ranks stop after"
        lines_until(job, said)
    (job.folder / "go").touch()
    ended, err = job.end()
    assert ended == code
    assert "--reset-limit" not in err


def test_what_ranks_print_is_copied_and_prefixed(start, tmp_path):
    folder = tmp_path / "out"
    job = start(RUN, "-np", "2", "--output-filename", str(folder), "--prefix-output", words=[["raise"]])
    code, err = job.end()
    assert code == 1
    for rank in (0, 1):
        assert (folder / f"rank.{rank}" / "stderr").read_text().endswith("ValueError: told to\n")
        assert (folder / f"rank.{rank}" / "stdout").read_text() == ""
        assert f"[{rank}]<stderr>: ValueError: told to\n" in err


def test_verbose_tells_who_starts_and_enters(start):
    words = {"0": [["tell", LOST], ["tell", JOINED], ["note", "told"], ["wait_for", "go"]], "1": []}
    job = start(RUN, "-np", "2", "--verbose", words=words)
    job.wait_for("told")
    (job.folder / "go").touch()
    code, err = job.end()
    assert code == 0
    assert f"elche-run: process 0 has started on {os.uname().nodename}, pid {job.wait_for('pid')}\n" in err
    assert "elche-run: process 1 is lost: died\nelche-run: process 1 has entered in slot 1\n" in err
    assert "mpirun --with-ft ulfm" in err.splitlines()[0]
