"""The words that mpiexec of Hydra takes: MPICH's, and Intel's, which differs where hosts have slots."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from elche.errors import require
from elche.mpi_launch.hosts import Host
from elche.mpi_launch.options import Options


def hydra_command(
    options: Options, *, mpirun: str, intel: bool, names: Sequence[str], rank: Sequence[str]
) -> list[str]:
    """Return the command that starts the job. Ranks are Hydra's own children: there is no guard between.

    Args:
        options: what was asked for.
        mpirun: a path; mpiexec beside it is preferred, for Intel's mpirun is a script that needs PATH.
        intel: whether it is Intel's.
        names: variables that other hosts get.
        rank: the command of one rank.

    Returns:
        The words.
    """
    mpiexec = Path(mpirun).with_name("mpiexec")
    words = [str(mpiexec) if mpiexec.exists() else mpirun]
    if options.hosts and not intel:
        words += ["-hosts", ",".join(map(str, options.hosts))]
    if options.remote_hosts:
        words += ["-genvlist", ",".join(names)]
    if options.interfaces:
        words += ["-iface", options.interfaces[0]]
    words += _prefix(options)
    if options.output is not None:
        folder = Path(options.output).absolute() / "rank.%r"
        words += ["-outfile-pattern", f"{folder}/stdout", "-errfile-pattern", f"{folder}/stderr"]
    words += options.mpirun_args
    if not (options.hosts and intel):
        return [*words, "-n", str(options.num_processes), *rank]
    sets = [
        [":", "-host", host.name, "-n", str(count), *rank]
        for host, count in deal(options.num_processes, options.hosts)
    ]
    return [*words, *[word for one in sets for word in one][1:]]


def hydra_variables(options: Options, *, intel: bool) -> dict[str, str]:
    """Return how Hydra reaches other hosts, where that is not plain ssh."""
    if options.launch_agent == "ssh":
        return {}
    program, *extra = shlex.split(options.launch_agent)
    names = ("HYDRA_LAUNCHER_EXEC", "HYDRA_LAUNCH_EXTRA_ARGS")
    if intel:
        names = ("I_MPI_HYDRA_BOOTSTRAP_EXEC", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS")
    return dict(zip(names, (program, shlex.join(extra)), strict=True))


def deal(num_processes: int, hosts: Sequence[Host]) -> list[tuple[Host, int]]:
    """Return how many processes each host has: its slots are filled in order, then one more each in turn.

    Args:
        num_processes: how many there are.
        hosts: where they go.

    Returns:
        The hosts that have any, with how many.

    Example:
        >>> deal(5, [Host("a", 2), Host("b", 2)])
        [(Host(name='a', slots=2), 3), (Host(name='b', slots=2), 2)]
    """
    left, counts = num_processes, []
    for host in hosts:
        counts.append(min(left, host.slots))
        left -= counts[-1]
    each, more = divmod(left, len(hosts))
    counts = [count + each + (index < more) for index, count in enumerate(counts)]
    return [(host, count) for host, count in zip(hosts, counts, strict=True) if count]


def refuse_what_hydra_lacks(options: Options) -> None:
    """Raise `ConfigError` if more than one network interface was asked for."""
    names = ",".join(options.interfaces)
    require(len(options.interfaces) <= 1, "--network-interfaces", names, "one name: Hydra takes no more")


def _prefix(options: Options) -> list[str]:
    if options.prefix_timestamp:
        return ["-prepend-pattern", "[%t][%r] "]
    return ["-prepend-rank"] if options.prefix_output else []
