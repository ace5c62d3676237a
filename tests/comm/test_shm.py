"""Memory that processes share: found by a ticket, gone with its users, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from segments import open_segments

from elche.comm.shm import HEADER_BYTES, Offer, Segment

NUM_BYTES = 5000
CHILD = """
import sys
from elche.comm.shm import Segment, Ticket
pid, fd, mark, num_bytes = sys.argv[1:]
segment = Segment.attach(Ticket(int(pid), int(fd), mark, int(num_bytes)))
assert segment.data.nbytes == int(num_bytes), segment.data.nbytes
print(segment.data[7], flush=True)
segment.data[8] = 99
"""


def test_another_process_reads_and_writes():
    offer = Offer(NUM_BYTES)
    segment = Segment.attach(offer.ticket)
    assert not segment.data.any()
    assert segment.data.ctypes.data % HEADER_BYTES == 0
    segment.data[7] = 42
    command = [sys.executable, "-c", CHILD, *map(str, offer.ticket)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr) == ("42\n", "")
    assert segment.data[8] == 99


def test_it_lives_as_long_as_an_array_uses_it_and_leaves_nothing():
    before, names = open_segments(), set(Path("/dev/shm").iterdir())
    offer = Offer(NUM_BYTES)
    assert open_segments() == before + 1
    data = Segment.attach(offer.ticket).data[10:20]
    offer.close()
    offer.close()
    data[:] = 7
    assert data.tolist() == [7] * 10
    del data
    assert open_segments() == before
    assert set(Path("/dev/shm").iterdir()) == names


def test_an_offer_that_is_forgotten_is_closed():
    before = open_segments()
    offer = Offer(NUM_BYTES)
    del offer
    assert open_segments() == before


def test_a_closed_offer_is_not_found():
    offer = Offer(NUM_BYTES)
    offer.close()
    with pytest.raises(FileNotFoundError, match=rf"/proc/{os.getpid()}/fd/{offer.ticket.fd}"):
        Segment.attach(offer.ticket)


def test_what_stands_under_that_number_must_be_what_was_told():
    """In another container the same numbers may be another process's."""
    one, other = Offer(NUM_BYTES), Offer(NUM_BYTES)
    with pytest.raises(ValueError, match=r"file \d+ of process \d+ is another one than was told"):
        Segment.attach(one.ticket._replace(mark=other.ticket.mark))


def test_a_shorter_one_is_refused():
    offer = Offer(NUM_BYTES)
    with pytest.raises(ValueError, match="length is greater than file size"):
        Segment.attach(offer.ticket._replace(num_bytes=NUM_BYTES + 10_000))


def test_an_empty_one_will_do():
    offer = Offer(0)
    assert Segment.attach(offer.ticket).data.nbytes == 0


def test_without_such_files_the_reason_is_told(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(OSError, match="this system has no memfd_create"):
        Offer(NUM_BYTES)
