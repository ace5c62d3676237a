"""Memory that processes of one host share.

It is an anonymous file of the kernel's (memfd), which the others open through /proc while its owner holds it
open. It has no name: nothing is left behind by any end, and a small or full /dev/shm is no limit.
"""

from __future__ import annotations

import mmap
import os
import secrets
import weakref
from typing import NamedTuple

import numpy as np

from elche.comm.base import Buffer

HEADER_BYTES = 64  # what follows is aligned for any vector unit
MARK_BYTES = 16


class Ticket(NamedTuple):
    """Where a segment is to be found.

    Attributes:
        pid: the process that holds it open.
        fd: under this number.
        mark: the segment's own random bytes, in hexadecimal: in another container that number may be another
            process's.
        num_bytes: how long it is.
    """

    pid: int
    fd: int
    mark: str
    num_bytes: int


class Segment:
    """Memory that several processes have mapped; it is given back with the last array that uses it.

    Attributes:
        data: its bytes; zeros at first.
    """

    data: Buffer

    def __init__(self, mapped: mmap.mmap) -> None:
        """Wrap a mapped file.

        Args:
            mapped: with room for a header.
        """
        self.data = np.frombuffer(mapped, np.uint8, offset=HEADER_BYTES)

    @classmethod
    def attach(cls, ticket: Ticket) -> Segment:
        """Map another process's segment, or this one's again.

        Args:
            ticket: where it is.

        Returns:
            The segment.

        Raises:
            OSError: it cannot be opened or mapped.
            ValueError: what is there is something else.
        """
        fd = os.open(
            f"/proc/{ticket.pid}/fd/{ticket.fd}", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        )
        try:
            mapped = mmap.mmap(fd, HEADER_BYTES + ticket.num_bytes)
        finally:
            os.close(fd)
        if mapped[:MARK_BYTES].hex() != ticket.mark:
            raise ValueError(f"file {ticket.fd} of process {ticket.pid} is another one than was told")
        return cls(mapped)


class Offer:
    """A new segment, open for others to attach to until it is closed or forgotten.

    Attributes:
        ticket: where they find it.
    """

    ticket: Ticket

    def __init__(self, num_bytes: int) -> None:
        """Make a segment.

        Args:
            num_bytes: how long.

        Raises:
            OSError: the system has no memory for it, or knows no such files.
        """
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memfd_create")
        fd = os.memfd_create("elche", os.MFD_CLOEXEC)
        self._finalizer = weakref.finalize(self, os.close, fd)
        os.ftruncate(fd, HEADER_BYTES + num_bytes)
        mark = secrets.token_bytes(MARK_BYTES)
        os.pwrite(fd, mark, 0)
        self.ticket = Ticket(os.getpid(), fd, mark.hex(), num_bytes)

    def close(self) -> None:
        """Let nobody attach any more; may be repeated."""
        self._finalizer()
