"""The Protocol every backend speaks: few verbs, host buffers, a deadline on every wait."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from elche.errors import ConfigError, RankError

Buffer = NDArray[Any]
DEADLINE_SECONDS = 600.0  # first batches, compilation and evaluation on one rank are long and no fault
LIKELY_CAUSE = "another rank has ended, hangs, or is busy for longer (ELCHE_STALL_SECONDS sets the limit)"
NAME_BYTES, VALUE_BYTES = 40, 3000  # of what a register holds
SUMMED = np.typecodes["AllInteger"] + "fdFD"  # what both numpy and every MPI can add


class Comm(Protocol):
    """What the ranks of one generation say to each other.

    Every verb is collective: all ranks call it, in the same order, with the same shapes and dtypes.
    Arrays are C-contiguous numpy arrays on host memory and are passed without a copy; anything else is
    refused locally with `ConfigError`, and nothing has been sent then. A verb that does not end within
    `deadline_seconds` (None: the communicator's own) raises `DeadlineError`; any other failure raises
    `CommError`. After either the communicator is unusable: further verbs raise `CommError`, and the
    arrays that were to be overwritten may still be written to. Results have the same bits on every rank.

    Attributes:
        rank: this rank's number, 0..size-1.
        size: how many ranks there are.
        local_rank: this rank's number among those of its host.
        local_size: how many ranks its host has.
        cross_rank: its host's number, counted over the hosts that have this local rank.
        cross_size: how many hosts have a rank of this local number.
        hosts: by rank, a number that ranks of one host share.
        deadline_seconds: how long a verb waits when it is not told.
        watch: called about every millisecond while a verb waits; what it raises ends the verb, and the
            communicator. None: nobody watches.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    hosts: list[int]
    deadline_seconds: float
    watch: Callable[[], None] | None

    def all_gather(self, send: Buffer, *, deadline_seconds: float | None = None) -> Buffer:
        """Return every rank's `send`, stacked in rank order: shape `(size, *send.shape)`, same dtype."""
        ...

    def all_reduce(
        self, sends: Sequence[Buffer], recvs: Sequence[Buffer], *, deadline_seconds: float | None = None
    ) -> None:
        """Sum `sends[i]` over the ranks into `recvs[i]`, for all i at once; `sends` stay as they were."""
        ...

    def all_to_all(self, send: Buffer, *, deadline_seconds: float | None = None) -> Buffer:
        """Return in row w what rank w has for this one, its `send[rank]`; `send` is `(size, ...)`."""
        ...

    def broadcast(
        self, buffers: Sequence[Buffer], *, root: int, deadline_seconds: float | None = None
    ) -> None:
        """Overwrite `buffers` on every rank with those of rank `root`, in place."""
        ...

    def agree(self, ok: bool, *, deadline_seconds: float | None = None) -> bool:
        """Return whether every rank said `ok`; nobody returns before everybody has spoken."""
        ...

    def absent(self) -> list[int]:
        """Return the ranks that have not come to the verb under way, as far as is known; for `watch`.

        A rank counts as here once it has asked itself, or the verb has brought word of it.
        """
        ...

    def beside(self, ranks: Sequence[int], name: str, *, deadline_seconds: float) -> Comm:
        """Return another communicator of these ranks, in this order, that another thread may use meanwhile.

        Just these ranks call it, and a name once. It has the same `watch`, and this `deadline_seconds`.
        Raises `CommError` where one of them is known to be gone, or has not come in time; a backend may
        return before all have come.
        """
        ...

    def revoke(self) -> None:
        """Make every verb under way and to come fail with `CommError`, on all ranks; may be repeated.

        Where losses cannot be survived it does so on this rank only.
        """
        ...

    def close(self) -> None:
        """Give back what can be; further verbs raise `CommError`. Not collective, may be repeated."""
        ...

    def abort(self, code: int) -> None:
        """End the job for all ranks with exit code `code`, as far as the backend can; may not return."""
        ...


class Rendezvous(Protocol):
    """How the processes of a job find each other, in whatever communicators they are.

    A process has a lasting number, 0..num_processes-1. All methods may be called by two threads at once,
    and none waits for another process but `connect`.

    Attributes:
        process: this process's number.
        num_processes: how many there are, spares included.
    """

    process: int
    num_processes: int

    def connect(
        self,
        processes: Sequence[int],
        name: str,
        *,
        deadline_seconds: float,
        watch: Callable[[], None] | None = None,
    ) -> Comm:
        """Return a communicator of exactly these processes, in this order; all of them call it.

        Raises `CommError` when one of them is gone or has not come within the deadline, or what `watch`
        raises, which is called about every millisecond meanwhile. A name is used once.
        """
        ...

    def send(self, process: int, message: bytes) -> None:
        """Send a small message; it arrives in order, or not at all where that process is gone."""
        ...

    def receive(self) -> list[tuple[int, bytes]]:
        """Return the messages that have come since the last call, each with its sender."""
        ...

    def gone(self) -> frozenset[int]:
        """Return the processes that are known to have ended; the word of the system, not a guess."""
        ...

    def propose(self, name: str, value: str) -> str:
        """Write `value` under `name` unless somebody has; return what stands there. The first write wins.

        Short texts only: a name of up to 40 bytes, a value of up to 3,000.
        """
        ...

    def look_up(self, name: str) -> str | None:
        """Return what stands under `name`, None for nothing."""
        ...


def all_gather_bytes(comm: Comm, payload: bytes, *, deadline_seconds: float | None = None) -> list[bytes]:
    """Return every rank's `payload`, in rank order; lengths may differ.

    Args:
        comm: the ranks.
        payload: this rank's.
        deadline_seconds: how long each of its two steps may last; None: the communicator's own.

    Returns:
        One payload per rank.

    Raises:
        RankError: some rank has left instead (`tell_leaving`); on all that have not.
    """
    sizes = comm.all_gather(np.array([len(payload)], np.int64), deadline_seconds=deadline_seconds)[:, 0]
    if sizes.min() < 0:
        raise RankError(f"ranks {np.flatnonzero(sizes < 0).tolist()} ended while the others began to train")
    padded = np.zeros(max(1, int(sizes.max())), np.uint8)
    padded[: len(payload)] = np.frombuffer(payload, np.uint8)
    rows = comm.all_gather(padded, deadline_seconds=deadline_seconds)
    return [rows[rank, :size].tobytes() for rank, size in enumerate(sizes)]


def broadcast_bytes(comm: Comm, payload: bytes, *, root: int) -> bytes:
    """Return the `payload` of rank `root`, of any length; the others' counts for nothing.

    Args:
        comm: the ranks.
        payload: what to send, on `root`.
        root: whose it is.

    Returns:
        The same bytes on every rank.
    """
    is_root = comm.rank == root
    size = np.array([len(payload) if is_root else 0], np.int64)
    comm.broadcast([size], root=root)
    data = np.frombuffer(bytearray(payload), np.uint8) if is_root else np.empty(int(size[0]), np.uint8)
    comm.broadcast([data], root=root)
    return payload if is_root else data.tobytes()


def tell_leaving(comm: Comm) -> None:
    """Come to the others' next `all_gather_bytes`, if there is one, and say that this rank leaves."""
    comm.all_gather(np.array([-1], np.int64))


def flush_output() -> None:
    """Show what was printed, before an end that does not; a daemon's streams may be closed or missing."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def require_seconds(seconds: float) -> float:
    """Return `seconds` if a deadline can be that long, else raise `ConfigError`."""
    if not seconds > 0:
        raise ConfigError(f"deadline_seconds must be above 0, got {seconds}")
    return seconds


def require_members(process: int, members: Sequence[int], num_processes: int) -> list[int]:
    """Return `members` if `process` can connect them, else raise `ConfigError`."""
    different = set(members)
    if process not in different or len(different) < len(members) or not different <= {*range(num_processes)}:
        raise ConfigError(
            f"process {process} connects different ones of 0..{num_processes - 1}, itself among them, "
            f"got {list(members)}"
        )
    return list(members)


def require_short(name: str, value: str) -> None:
    """Raise `ConfigError` if a register has no room for them."""
    for text, bound in ((name, NAME_BYTES), (value, VALUE_BYTES)):
        if len(text.encode()) > bound:
            raise ConfigError(f"{text[:20]!r}... must be at most {bound} bytes, got {len(text.encode())}")


def require_root(root: int, size: int) -> None:
    """Raise `ConfigError` if there is no rank `root`."""
    if not 0 <= root < size:
        raise ConfigError(f"root must be in 0..{size - 1}, got {root}")


def require_rows(send: Buffer, size: int) -> None:
    """Raise `ConfigError` if `send` has not one row for each rank, or cannot be passed without a copy."""
    if send.shape[:1] != (size,):
        raise ConfigError(f"all_to_all takes one row for each of {size} ranks, got shape {send.shape}")
    require_contiguous("all_to_all", send)


def require_contiguous(verb: str, *buffers: Buffer) -> None:
    """Raise `ConfigError` if one of `buffers` cannot be passed without a copy."""
    for buffer in buffers:
        if not buffer.flags.c_contiguous:
            raise ConfigError(
                f"{verb} takes C-contiguous arrays, got strides {buffer.strides} of shape {buffer.shape}"
            )


def require_pairs(sends: Sequence[Buffer], recvs: Sequence[Buffer]) -> None:
    """Raise `ConfigError` if `sends` cannot be summed into `recvs`, out of place and without a copy."""
    if len(sends) != len(recvs):
        raise ConfigError(
            f"all_reduce takes one recv per send, got {len(sends)} sends and {len(recvs)} recvs"
        )
    require_contiguous("all_reduce", *sends, *recvs)
    for send, recv in zip(sends, recvs, strict=True):
        if (send.shape, send.dtype) != (recv.shape, recv.dtype):
            raise ConfigError(
                f"all_reduce takes pairs of one shape and dtype, got {send.shape} {send.dtype} "
                f"and {recv.shape} {recv.dtype}"
            )
        if send.dtype.char not in SUMMED or not send.dtype.isnative:
            raise ConfigError(
                f"all_reduce sums integers, float32, float64 and their complex pairs, got {send.dtype}"
            )
        if np.may_share_memory(send, recv):
            raise ConfigError("all_reduce works out of place, but a send and its recv share memory")
