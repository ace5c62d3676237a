"""Hosts that a discovery script finds, and what ranks on other hosts are told and print."""

from __future__ import annotations

from pathlib import Path

from hosts_rig import Hosts
from waiting import until

OFTEN = {"ELCHE_SNAPSHOT_SECONDS": "0.1"}
TOLD = "import os, sys; print(os.uname().nodename, os.environ['A']); sys.stderr.write('e')"


def test_a_host_that_is_lost_is_replaced_by_one_that_is_found(launch, hosts, tmp_path: Path) -> None:
    net: Hosts = hosts(3)
    first, _, third = net.names
    script, found = tmp_path / "find.sh", tmp_path / "found"
    script.write_text(f"#!/bin/sh\nexec cat {found}\n")
    script.chmod(0o755)

    def let_find(*lines: str) -> None:
        (tmp_path / "aside").write_text("\n".join(lines))
        (tmp_path / "aside").replace(found)

    let_find(*(f"{name}:1" for name in net.names[:2]))
    options = ["--host-discovery-script", str(script), "-np", "2", *net.options(1)[2:]]
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
