"""The hosts of a job: how a user names them, which of them answer, and how they reach this machine."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elche.errors import ConfigError, require

PROBE_SECONDS = 10.0


@dataclass(frozen=True)
class Host:
    """A machine and how many ranks it may have."""

    name: str
    slots: int

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Return the hosts of "h1:2,h2"; one without a number has one slot.

    Args:
        text: what the user wrote.

    Returns:
        The hosts, in their order.

    Raises:
        ConfigError: a name is missing or twice, or a number is none or below 1.
    """
    pairs = [
        item.strip().rpartition(":") if ":" in item else (item.strip(), "", "1") for item in text.split(",")
    ]
    return checked_hosts("--hosts", [(name, slots) for name, _, slots in pairs])


def read_hostfile(path: str, option: str = "--hostfile") -> tuple[Host, ...]:
    """Return the hosts of a file of lines such as "h1 slots=2" or "h1:2"; # begins a comment.

    Args:
        path: the file.
        option: who names it.

    Returns:
        The hosts, in their order.

    Raises:
        ConfigError: the file cannot be read, is empty, or a line is refused.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise ConfigError(
            f"{option} must be a file that can be read, got {path!r}: {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{option} must be a file of text, got {path!r}") from None
    pairs = []
    for words in (line.partition("#")[0].split() for line in lines):
        if words:
            name, colon, number = words[0].partition(":")
            slots = [word.partition("=")[2] for word in words[1:] if word.startswith("slots=")]
            pairs.append((name, slots[0] if slots else number if colon else "1"))
    require(bool(pairs), option, path, "a file that names a host")
    return checked_hosts(option, pairs)


def checked_hosts(option: str, pairs: Sequence[tuple[str, str]]) -> tuple[Host, ...]:
    """Return the hosts of these names and numbers of slots.

    Args:
        option: who names them.
        pairs: name and slots, as they were written.

    Returns:
        The hosts, in their order.

    Raises:
        ConfigError: a name is none or twice, or a number is none or below 1.
    """
    hosts: dict[str, Host] = {}
    for name, slots in pairs:
        require(
            re.fullmatch(r"\w[\w.\-]*", name) is not None,
            option,
            name,
            "the name of a host, NAME or NAME:SLOTS",
        )
        holds = slots.isascii() and slots.isdigit() and int(slots) >= 1
        require(holds, f"{option}: the slots of {name}", slots, "an integer of at least 1")
        require(name not in hosts, option, name, "named once")
        hosts[name] = Host(name, int(slots))
    return tuple(hosts.values())


def is_local(host: Host) -> bool:
    """Return whether the host is this machine."""
    if host.name in ("localhost", socket.gethostname(), socket.getfqdn()):
        return True
    try:
        address = socket.gethostbyname(host.name)
        with socket.socket() as probe:
            probe.bind((address, 0))  # only an address of this machine can be bound
    except OSError:
        return False
    return True


def require_interfaces(option: str, names: Sequence[str]) -> None:
    """Raise `ConfigError` if this machine lacks one of these network interfaces."""
    have = [name for _, name in socket.if_nameindex()]
    for name in names:
        require(name in have, option, name, f"interfaces of this machine ({', '.join(have)})")


def addresses_towards(hosts: Sequence[Host]) -> list[str]:
    """Return this machine's addresses as those hosts see them, most likely first."""
    found = []
    for name in [*(host.name for host in hosts), None]:
        try:
            if name is None:
                found.append(socket.gethostbyname(socket.gethostname()))
                continue
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((name, 9))  # sends nothing; the system picks the address it would send from
                found.append(probe.getsockname()[0])
        except OSError:
            continue
    return list(dict.fromkeys(found)) or ["127.0.0.1"]


def answering(
    hosts: Sequence[Host],
    launch_agent: str,
    command: Sequence[str] = ("true",),
    deadline_seconds: float = PROBE_SECONDS,
) -> tuple[Host, ...]:
    """Return the hosts on which a command succeeds within the deadline; elsewhere the agent runs it.

    Args:
        hosts: to be asked, all at once.
        launch_agent: runs a command on a host.
        command: its words.
        deadline_seconds: how long all of them may take.

    Returns:
        Those that have done it, in their order.
    """
    until = time.monotonic() + deadline_seconds
    agents = {host: [] if is_local(host) else [*shlex.split(launch_agent), host.name] for host in hosts}
    probes = {host: _probe([*agent, *command]) for host, agent in agents.items()}
    return tuple(host for host, probe in probes.items() if _succeeds(probe, until))


def _probe(command: list[str]) -> subprocess.Popen[bytes] | None:
    silent = subprocess.DEVNULL
    try:
        return subprocess.Popen(command, stdin=silent, stdout=silent, stderr=silent)
    except OSError:
        return None


def _succeeds(probe: subprocess.Popen[bytes] | None, until: float) -> bool:
    if probe is None:
        return False
    try:
        return probe.wait(max(0.0, until - time.monotonic())) == 0
    except subprocess.TimeoutExpired:
        probe.kill()
        probe.wait()
        return False
