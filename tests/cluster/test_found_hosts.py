"""Hosts that a discovery script finds, and what ranks on other hosts are told and print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hosts_rig import Hosts
from waiting import until

OFTEN = {"ELCHE_SNAPSHOT_SECONDS": "0.1"}
TOLD = "import os, sys; print(os.uname().nodename, os.environ['A']); sys.stderr.write('e')"


@pytest.fixture
def let_find(tmp_path: Path) -> Callable[..., list[str]]:
    """`let_find(*lines)`: a script prints these from now on; returns the options that name it."""
    script, found = tmp_path / "find.sh", tmp_path / "found"
    script.write_text(f"#!/bin/sh\nexec cat {found}\n")
    script.chmod(0o755)

    def let(*lines: str) -> list[str]:
        (tmp_path / "aside").write_text("\n".join(lines))
        (tmp_path / "aside").replace(found)
        return ["--host-discovery-script", str(script)]

    return let


def test_a_job_trains_on_slots_that_come(launch, let_find) -> None:
    options = [*let_find("localhost:1"), "-np", "1", "--max-np", "2"]
    job = launch(*options, pace=0.04)
    job.wait_for_window(3)
    let_find("localhost:2")
    assert job.end() == 0
    assert job.said == ["growing to 2 ranks"]
    job.assert_lawful()
    assert job.members == {0, 1}
    assert [entry["slot"] for entry in job.log("joined")] == [1]


def test_losses_and_entries_are_counted_as_they_come_to_pass(launch) -> None:
    job = launch("-np", "2", "--spares", "1", "--reset-limit", "1", pace=0.04, faults=[[1, 8, "SIGKILL"]])
    assert job.end() == 1
    job.assert_fired()
    why = "losses and entries: 2, --reset-limit allows 1: all ranks stop after the same window"
    assert job.said == [why, job.lost_line(1, "died (killed by signal 9)"), "failed; exit code 1"]


def test_a_host_that_is_lost_is_replaced_by_one_that_is_found(launch, hosts, let_find) -> None:
    net: Hosts = hosts(3)
    first, _, third = net.names
    find = let_find(*(f"{name}:1" for name in net.names[:2]))
    options = [*find, "-np", "2", *net.options(1)[2:]]
    job = launch(
        *options, "--stall-seconds", "2", "--grace-seconds", "1", prefix=net.prefix, env=OFTEN, pace=0.02
    )
    job.wait_for_window(5)
    until(lambda: all(map(net.memory, net.names[:2])))
    let_find(f"{first}:1", f"{third}:1")
    until(lambda: "elche-run: host eh2 is not named any more" in job.err)
    assert f"elche-run: host {third} is new: it is used if the job starts again\n" in job.err
    net.shut_down("eh2")
    assert job.end(120.0) == 0
    assert "elche-run: starting again with 2 ranks on eh1:1,eh3:1; restarts left: 2\n" in job.err
    (resumed,) = job.log("resume")
    assert resumed["window"] > 0
    job.assert_lawful()


def test_ranks_elsewhere_get_what_was_set_and_their_output_is_kept(launch, hosts, tmp_path: Path) -> None:
    net: Hosts = hosts(2)
    script, out = tmp_path / "told.py", tmp_path / "out"
    script.write_text(TOLD)
    options = [*net.options(1), "-x", "A=a b", "--network-interfaces", "eth0", "--output-filename", str(out)]
    job = launch(*options, "--prefix-output", prefix=net.prefix, script=(str(script),))
    assert job.end() == 0
    for rank, name in enumerate(net.names):
        assert f"[{rank}]<stdout>: {name} a b\n" in job.out
        assert (out / f"rank.{rank}" / "stdout").read_text() == f"{name} a b\n"
        assert (out / f"rank.{rank}" / "stderr").read_text() == "e"
