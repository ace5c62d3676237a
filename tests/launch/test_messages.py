"""Lines between rank, guard and launcher: whole messages, no waiting, no exceptions."""

from __future__ import annotations

import os
import socket
import time

import pytest

from elche.errors import ConfigError
from elche.mpi_launch.messages import (
    Channel,
    GuardLine,
    LauncherAddress,
    inheritable_text,
    parse_launcher,
)


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    yield Channel(ours), theirs
    ours.close()
    theirs.close()


@pytest.fixture
def line(ends):
    """A rank's line as it finds it, and its guard's end."""
    channel, theirs = ends
    text = inheritable_text(theirs)
    theirs.detach()  # it is the line's now
    made = GuardLine(text)
    assert channel.receive() == [{"event": "listening"}]
    yield made, channel
    made.close()


def test_a_message_arrives_as_it_was(ends):
    channel, theirs = ends
    peer = Channel(theirs)
    peer.send({"event": "lost", "process": 2, "heal_ms": 1.5, "text": "ä\n"})
    peer.send({})
    assert channel.receive() == [{"event": "lost", "process": 2, "heal_ms": 1.5, "text": "ä\n"}, {}]
    assert channel.receive() == []


def test_a_message_in_pieces_is_one(ends):
    channel, theirs = ends
    theirs.send(b'{"be')
    assert channel.receive() == []
    theirs.send(b'at": true}\n{"a"')
    assert channel.receive() == [{"beat": True}]
    theirs.send(b": 1}\n")
    assert channel.receive() == [{"a": 1}]


def test_what_is_no_object_is_left_out(ends):
    channel, theirs = ends
    theirs.send(b'nonsense\n[1]\n\xff\xfe\n\n{"a": 1}\n')
    assert channel.receive() == [{"a": 1}]


def test_the_last_words_of_one_who_has_gone_are_heard(ends):
    channel, theirs = ends
    channel.send({"unread": True})
    peer = Channel(theirs)
    peer.send({"a": 1})
    peer.finish()
    assert channel.receive() == [{"a": 1}]
    assert not channel.is_open
    channel.send({"b": 2})
    assert channel.receive() == []


def test_nobody_waits_for_one_who_does_not_read(ends):
    channel, theirs = ends
    longest = 0.0
    for _ in range(100):
        began = time.monotonic()
        channel.send({"text": "x" * 30_000})
        longest = max(longest, time.monotonic() - began)
    assert longest < 1.0  # a moment is 0.02 s; the rest is a busy machine's
    assert channel.is_open
    peer = Channel(theirs)
    received = peer.receive()
    for _ in range(100):
        channel.send({})
        received += peer.receive()
    whole = [message for message in received if message]
    assert 35 <= len(whole) < 100  # what did not fit in a socket and a MiB was dropped, message by message
    assert {len(message["text"]) for message in whole} == {30_000}


def test_a_rank_and_its_guard_talk(line):
    rank, guard = line
    assert rank.is_open
    rank.tell({"beat": True, "in_batch": True})
    assert guard.receive() == [{"beat": True, "in_batch": True}]
    assert rank.hear() == []
    guard.send({"stop": True})
    assert rank.hear() == [{"stop": True}]


def test_a_rank_does_not_mind_that_its_guard_is_gone(line):
    rank, guard = line
    guard.close()
    assert rank.hear() == []
    rank.tell({"beat": True})
    assert not rank.is_open


def test_a_rank_that_has_hung_up_says_no_more(line):
    rank, guard = line
    rank.tell({"a": 1})
    rank.close()
    rank.tell({"b": 2})
    assert guard.receive() == [{"a": 1}]
    assert (rank.is_open, guard.is_open) == (False, False)


def test_without_a_guard_nothing_is_said():
    rank = GuardLine(None)
    rank.tell({"beat": True})
    assert (rank.hear(), rank.is_open) == ([], False)


def test_a_process_that_did_not_inherit_the_line_takes_nothing_else_for_it(ends):
    _, theirs = ends
    inode = os.fstat(theirs.fileno()).st_ino
    for text in (f"fd:{theirs.fileno()}:{inode + 1}", f"fd:1000000:{inode}"):
        assert not GuardLine(text).is_open


@pytest.mark.parametrize("text", ["fd:x:1", "fd:7", "7:1:2", "tcp:t:1:h", "fd:-1:b"])
def test_a_rank_refuses_what_no_guard_has_written(text):
    with pytest.raises(ConfigError, match=f"ELCHE_GUARD .* got '{text}'"):
        GuardLine(text)


def test_the_launchers_address_survives_its_spelling():
    address = LauncherAddress("token", 4711, ("10.0.0.1", "fe80::1"))
    assert str(address) == "tcp:token:4711:10.0.0.1,fe80::1"
    assert parse_launcher(str(address)) == address


@pytest.mark.parametrize("text", ["tcp:token:port:here", "udp:token:1:here", "tcp:token:1", "fd:3:4"])
def test_a_guard_refuses_what_no_launcher_has_written(text):
    with pytest.raises(ConfigError, match=f"ELCHE_GUARD .* got '{text}'"):
        parse_launcher(text)
