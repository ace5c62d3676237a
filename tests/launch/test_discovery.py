"""Hosts that come and go: what a script prints, what follows from it, and how it is called."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import is_alive, until

from elche.errors import ConfigError
from elche.mpi_launch.discovery import Change, Discovery, judge, parse_discovered
from elche.mpi_launch.hosts import Host
from elche.mpi_launch.signals import SignalPipe, Stopped

A, B = Host("a", 2), Host("b", 1)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("\n  \n# nothing today\n", ()),
        ("a:2\nb:1\n", (A, B)),
        ("a\nb:1", (Host("a", 4), B)),
        ("  a:2   # a comment\r\nb:1\r\n", (A, B)),
    ],
)
def test_its_output_is_understood(text: str, hosts: tuple[Host, ...]) -> None:
    assert parse_discovered(text, slots_per_host=4) == hosts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:0", "the slots of a must be an integer of at least 1, got '0'"),
        ("a:", "the slots of a must be an integer of at least 1, got ''"),
        ("a:two", "the slots of a must be an integer of at least 1, got 'two'"),
        ("a slots=2", "must be the name of a host, NAME or NAME:SLOTS, got 'a slots=2'"),
        ("-x", "must be the name of a host, NAME or NAME:SLOTS, got '-x'"),
        ("a:1\na:2", "must be named once, got 'a'"),
        ("\x00\ufffd", "must be the name of a host, NAME or NAME:SLOTS, got '\\x00\ufffd'"),
    ],
)
def test_what_is_no_host_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_discovered(text, slots_per_host=1)
    assert str(caught.value).startswith("--host-discovery-script's output")
    assert str(caught.value).endswith(said)


@pytest.mark.parametrize(
    ("found", "gone", "num_ranks", "max_ranks", "change"),
    [
        ([A, B], (), 3, 5, Change(3, (), ())),
        ([Host("a", 4), B], (), 3, 5, Change(5, (), ())),
        ([Host("a", 9), B], (), 3, 5, Change(5, (), ())),
        ([Host("a", 9), B], (), 3, None, Change(3, (), ())),
        ([Host("a", 1), B], (), 3, 5, Change(3, (), ())),
        ([A], (), 3, 5, Change(3, ("b",), ())),
        ([A, B, Host("c", 8)], (), 3, 5, Change(3, (), ("c",))),
        ([A, Host("b", 9)], ("b",), 3, 5, Change(3, (), ())),
        ([], (), 3, 5, Change(3, ("a", "b"), ())),
        ([], ("a", "b"), 3, 5, Change(3, (), ())),
    ],
)
def test_what_follows_for_a_job_on_a_and_b(
    found: list[Host], gone: tuple[str, ...], num_ranks: int, max_ranks: int | None, change: Change
) -> None:
    assert judge([A, B], found, gone=frozenset(gone), num_ranks=num_ranks, max_ranks=max_ranks) == change


@pytest.fixture
def discover(tmp_path: Path) -> Iterator[Callable[..., Discovery]]:
    """`discover(shell_script, call_seconds=...)`."""
    made: list[Discovery] = []

    def make(body: str, call_seconds: float = 20.0) -> Discovery:
        script = tmp_path / "hosts.sh"
        script.write_text(f"#!/bin/sh\ncd {tmp_path}\n{body}\n")
        script.chmod(0o755)
        made.append(Discovery(str(script), 1, call_seconds))
        return made[-1]

    yield make
    for discovery in made:
        discovery.close()


@pytest.fixture
def signals() -> Iterator[SignalPipe]:
    before = signal.getsignal(signal.SIGTERM)
    with contextlib.closing(SignalPipe((signal.SIGTERM,))) as pipe:
        yield pipe
    signal.signal(signal.SIGTERM, before)


def test_it_is_called_every_second_and_not_more_often(discover) -> None:
    discovery = discover("echo x >> calls; echo a:2")
    assert discovery.poll(100.0) is None
    assert until(lambda: discovery.poll(100.0)) == (A,)
    assert discovery.poll(100.9) is None
    assert discovery.poll(100.9) is None
    discovery.poll(101.0)
    assert until(lambda: discovery.poll(101.0)) == (A,)
    assert (Path(discovery._script).parent / "calls").read_text() == "x\nx\n"


def test_hosts_that_have_vanished_are_not_used_again(discover) -> None:
    discovery = discover("echo a:2; echo b:1")
    discovery.forget(("b",))
    assert until(lambda: discovery.poll(time.monotonic())) == (A,)


def test_a_call_that_takes_too_long_is_killed_with_what_it_has_started(discover, tmp_path) -> None:
    discovery = discover("sleep 600 & echo $! > pid.new; mv pid.new pid; wait", call_seconds=5.0)
    discovery.poll(0.0)
    pid = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    with pytest.raises(
        ConfigError, match=r"^--host-discovery-script must be done within 5 s, got .*hosts\.sh"
    ):
        discovery.poll(5.1)
    until(lambda: not is_alive(pid))


def test_a_call_that_prints_for_ever_is_ended(discover, signals) -> None:
    said = "must be a program that prints at most 1000000 bytes"
    with pytest.raises(ConfigError, match=said):
        discover("exec yes").wait_for(1, 60.0, signals, str)


def test_much_output_is_read_whole(discover) -> None:
    discovery = discover("i=0; while [ $i -lt 4000 ]; do i=$((i+1)); echo host-with-a-long-name-$i:1; done")
    assert len(until(lambda: discovery.poll(1.0 if discovery._call else 0.0))) == 4000


@pytest.mark.parametrize(
    ("body", "said"), [("exit 3", "a program that ends with 0, not with 3"), ("echo a:0", "the slots of a")]
)
def test_a_call_that_fails_says_so(discover, body: str, said: str) -> None:
    discovery = discover(body)
    with pytest.raises(ConfigError, match=said):
        until(lambda: discovery.poll(time.monotonic()))


def test_a_program_that_cannot_be_run_is_named(tmp_path) -> None:
    (tmp_path / "hosts").write_text("neither script nor program")
    (tmp_path / "hosts").chmod(0o755)
    said = r"must be a program that can be run, got .*: Exec format error"
    with (
        contextlib.closing(Discovery(str(tmp_path / "hosts"), 1)) as discovery,
        pytest.raises(ConfigError, match=said),
    ):
        discovery.poll(0.0)


def test_slots_are_waited_for_and_later_failures_forgiven(discover, signals) -> None:
    said: list[str] = []
    body = (
        "if [ -e third ]; then echo a:2; elif [ -e second ]; then touch third; exit 1; else touch second; fi"
    )
    assert discover(body).wait_for(2, 60.0, signals, said.append) == (A,)
    assert said == ["waiting for 2 slots, --host-discovery-script finds 0"]


def test_a_first_failure_is_final(discover, signals) -> None:
    with pytest.raises(ConfigError, match="not with 1"):
        discover("exit 1").wait_for(2, 60.0, signals, print)


def test_where_one_call_has_succeeded_the_hosts_stay_while_others_fail(discover, signals) -> None:
    discovery = discover("[ -e second ] && exit 1; touch second; echo a:2")
    assert discovery.wait_for(2, 60.0, signals, str) == (A,)
    assert discovery.wait_for(3, 2.5, signals, str) == (A,)


def test_the_wait_has_an_end(discover, signals) -> None:
    assert discover("echo a:2").wait_for(3, 0.7, signals, str) == (A,)


def test_a_signal_ends_the_wait(discover, signals) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Stopped) as caught:
        discover("echo a:2").wait_for(3, 60.0, signals, str)
    assert caught.value.exit_code == 143
