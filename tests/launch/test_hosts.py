"""Which hosts answer, and which is this one."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from elche.mpi_launch.hosts import Host, addresses_towards, answering, is_local

ALIVE, DEAD, SLOW = (
    Host("203.0.113.1", 2),
    Host("203.0.113.2", 2),
    Host("203.0.113.3", 2),
)  # nobody's addresses
AGENT = """#!/bin/sh
[ "$1" = --quiet ] && shift
case $1 in
  203.0.113.1) shift; exec "$@";;
  203.0.113.2) exit 255;;
  203.0.113.3) exec sleep 60;;
esac
"""


def test_those_that_answer_in_time_are_found(tmp_path: Path) -> None:
    agent = tmp_path / "agent.sh"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    here = Host("localhost", 1)
    began = time.monotonic()
    found = answering((DEAD, ALIVE, SLOW, here), f"{agent} --quiet", deadline_seconds=1.5)
    assert found == (ALIVE, here)
    assert time.monotonic() - began < 10  # 1.5 s; the rest is a busy machine's


def test_a_command_is_run_on_every_host(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    done = tmp_path / "done"
    done.touch()
    assert answering((ALIVE, DEAD), str(agent), ("rm", str(done))) == (ALIVE,)
    assert not done.exists()
    assert answering((ALIVE, Host("localhost", 1)), str(agent), ("rm", str(done))) == ()


def test_an_agent_that_cannot_be_run_reaches_nobody() -> None:
    assert answering((ALIVE,), "/no/such/agent") == ()


def test_this_machine_knows_itself() -> None:
    assert is_local(Host("localhost", 1))
    assert is_local(Host(socket.gethostname(), 1))
    assert is_local(Host("127.0.0.1", 1))
    assert not is_local(ALIVE)
    assert not is_local(Host("no-such-host.invalid", 1))


def test_there_is_always_an_address_to_call() -> None:
    assert addresses_towards((Host("127.0.0.1", 1),))[0] == "127.0.0.1"
    assert addresses_towards((Host("no-such-host.invalid", 1),)) != []
