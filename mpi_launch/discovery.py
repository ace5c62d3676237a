"""Hosts that come and go, as a program of the user's names them: called every second, with a deadline.

What it says is parsed, and what follows from it decided, in pure functions.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elche.errors import ConfigError, require
from elche.mpi_launch.hosts import Host, checked_hosts
from elche.mpi_launch.signals import STOPS, SignalPipe, Stopped, ends_with_parent

EVERY_SECONDS = 1.0
CALL_SECONDS = 20.0  # a call that takes longer is killed, and counts as failed
NAP_SECONDS = 0.05
OPTION = "--host-discovery-script"
MOST_BYTES = 1_000_000


def parse_discovered(text: str, slots_per_host: int) -> tuple[Host, ...]:
    """Return the hosts that a discovery script has printed.

    Args:
        text: its output: HOST or HOST:SLOTS, one a line; empty lines and what follows # are left out.
        slots_per_host: slots of a host that is named without.

    Returns:
        The hosts, in their order; none where nothing is available.

    Raises:
        ConfigError: a line is something else, or a host is named twice.
    """
    words = [line.partition("#")[0].strip() for line in text.splitlines()]
    pairs = [word.partition(":") for word in words if word]
    named = [(name, slots if colon else str(slots_per_host)) for name, colon, slots in pairs]
    return checked_hosts(f"{OPTION}'s output", named)


@dataclass(frozen=True)
class Change:
    """What a discovery means for a job that runs.

    Attributes:
        ranks: so many the job may have now.
        vanished: hosts of the job that are not named any more.
        new: hosts that the running job cannot reach; it uses them when it starts again.
    """

    ranks: int
    vanished: tuple[str, ...]
    new: tuple[str, ...]


def judge(
    started_on: Sequence[Host],
    found: Sequence[Host],
    *,
    gone: frozenset[str],
    num_ranks: int,
    max_ranks: int | None,
) -> Change:
    """Return what follows from the hosts that were found.

    MPI starts all processes of a job together, so only the hosts that it was started on count: where these
    have more slots than the job has ranks, it grows into its sleeping processes. It never shrinks by itself.

    Args:
        started_on: the hosts that the job was started on.
        found: those that the script names now.
        gone: names that have vanished before; they are not used again.
        num_ranks: ranks of the job, those that it has grown by included.
        max_ranks: ranks that it may grow to; None: it does not grow.

    Returns:
        The ranks that it may have, and what has changed.

    Example:
        >>> judge([Host("a", 2)], [Host("a", 3), Host("b", 1)], gone=frozenset(), num_ranks=2, max_ranks=4)
        Change(ranks=3, vanished=(), new=('b',))
    """
    mine, named = {host.name for host in started_on}, {host.name for host in found}
    usable = sum(host.slots for host in found if host.name in mine - gone)
    return Change(
        ranks=max(num_ranks, min(usable, max_ranks or num_ranks)),
        vanished=tuple(host.name for host in started_on if host.name not in named | gone),
        new=tuple(host.name for host in found if host.name not in mine | gone),
    )


class Discovery:
    """Calls the script every second without waiting for it."""

    def __init__(self, script: str, slots_per_host: int, call_seconds: float = CALL_SECONDS) -> None:
        """Prepare; nothing is called yet.

        Args:
            script: the program.
            slots_per_host: slots of a host that is named without.
            call_seconds: how long a call may take.
        """
        self._script = script
        self._slots_per_host = slots_per_host
        self._call_seconds = call_seconds
        self._call: subprocess.Popen[bytes] | None = None
        self._printed = b""
        self._found: tuple[Host, ...] | None = None  # by the last call that succeeded
        self._began = -EVERY_SECONDS
        self.gone: frozenset[str] = frozenset()  # hosts that have vanished: they are not used again

    def poll(self, now: float) -> tuple[Host, ...] | None:
        """Return what a call has found that has just ended; begin the next when it is time.

        Args:
            now: seconds of a steady clock.

        Returns:
            The hosts but those that have vanished before; None: no call has ended.

        Raises:
            ConfigError: the call failed, took too long, or printed something else than hosts.
        """
        if self._call is None:
            if now - self._began >= EVERY_SECONDS:
                self._begin(now)
            return None
        code = self._call.poll()
        self._read(self._call)
        too_much = len(self._printed) > MOST_BYTES
        if code is None and not too_much and now - self._began <= self._call_seconds:
            return None
        self._kill()
        require(not too_much, OPTION, self._script, f"a program that prints at most {MOST_BYTES} bytes")
        require(code is not None, OPTION, self._script, f"done within {self._call_seconds:g} s")
        require(code == 0, OPTION, self._script, f"a program that ends with 0, not with {code}")
        hosts = parse_discovered(self._printed.decode(errors="replace"), self._slots_per_host)
        self._found = tuple(host for host in hosts if host.name not in self.gone)
        return self._found

    def wait_for(
        self, num_slots: int, seconds: float, signals: SignalPipe, say: Callable[[str], None]
    ) -> tuple[Host, ...]:
        """Wait until so many slots are there.

        Args:
            num_slots: how many.
            seconds: how long at most.
            signals: this process's; one that asks to stop ends the wait.
            say: prints a line for the user.

        Returns:
            The hosts that were found last; they have fewer slots where the time is over.

        Raises:
            ConfigError: a call failed and none has succeeded yet; others are made again.
            Stopped: a signal came.
        """
        until = time.monotonic() + seconds
        has_said = False
        while time.monotonic() < until:
            try:
                found = self.poll(time.monotonic())
            except ConfigError:
                if self._found is None:
                    raise
                found = None
            num_found = sum(host.slots for host in found or ())
            if found is not None and num_found >= num_slots:
                return found
            if found is not None and not has_said:
                has_said = True
                say(f"waiting for {num_slots} slots, {OPTION} finds {num_found}")
            if asked := STOPS.intersection(signals.read()):
                raise Stopped(min(asked))
            time.sleep(NAP_SECONDS)
        return self._found or ()

    def forget(self, names: Sequence[str]) -> None:
        """Use these hosts no more."""
        self.gone |= frozenset(names)

    def close(self) -> None:
        """End a call that is under way."""
        self._kill()

    def _begin(self, now: float) -> None:
        self._began, self._printed = now, b""
        try:
            self._call = subprocess.Popen(
                [self._script],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                preexec_fn=ends_with_parent(os.getpid()),  # noqa: PLW1509 - there are no threads here
            )
        except OSError as error:
            raise ConfigError(
                f"{OPTION} must be a program that can be run, got {self._script!r}: {error.strerror}"
            ) from None

    def _read(self, call: subprocess.Popen[bytes]) -> None:
        """Take what has been printed so far, and a little more than may be."""
        assert call.stdout is not None
        os.set_blocking(call.stdout.fileno(), False)
        while len(self._printed) <= MOST_BYTES and (piece := call.stdout.read(MOST_BYTES)):
            self._printed += piece

    def _kill(self) -> None:
        """End the call and what it has left behind."""
        if self._call is not None:
            with self._call as call, contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(call.pid, signal.SIGKILL)
            self._call = None
