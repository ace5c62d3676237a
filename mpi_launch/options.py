"""What a user may ask `elche-run` for, and what of it is refused."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elche.environment import Environment, most_failures, require_failures
from elche.errors import require
from elche.mpi_launch.allocation import Allocation, find_allocation, keeps_full_names
from elche.mpi_launch.arguments import split
from elche.mpi_launch.foreign import refuse_foreign
from elche.mpi_launch.hosts import Host, is_local, parse_hosts, read_hostfile, require_interfaces
from elche.mpi_launch.parser import BARE_RESPAWN, build_parser
from elche.mpi_launch.words import read_interfaces, read_launch_agent, read_script, read_variables, read_words

RESTARTS_WITH_HOSTS = 3
ELASTIC_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `elche-run` was asked for, checked.

    Attributes:
        script: the script, or -m and the module, with its arguments.
        num_ranks: ranks at the start.
        spares: warm processes that take a lost rank's slot.
        respawn: sleeping processes that load the script when a slot is to be filled.
        min_ranks: fewer ranks end the job.
        max_ranks: ranks the job may grow to; None: it does not.
        max_failures: most losses, "3", or "25%" of the ranks; None: no limit.
        reset_limit: most losses and entries together; None: no limit.
        strict: whether losses show in the exit code.
        stall_seconds: silence after which a rank is set aside; None: the ranks' own default.
        kill_seconds: how long a rank that was set aside may hang, and how long a stop may take.
        grace_seconds: how long what is left after the end may take.
        restarts: how often a job that died whole starts again.
        log: path of the event log.
        hosts: where the ranks run; none: here.
        hosts_from: who has named them where the command line has not; None: it has, or there are none.
        full_names: whether hosts are known by their full names only.
        discovery: a program that names the hosts; None: they stay what they are.
        most_found: with it, most ranks at any start; None: it has not been asked yet.
        slots_per_host: slots of a host that it names without.
        elastic_seconds: how long to wait for hosts.
        interfaces: network interfaces that ranks talk over; none: any.
        launch_agent: runs a command on a host.
        variables: names and values of variables for all ranks, wherever they run.
        output: directory of copies of what ranks print; None: there are none.
        prefix_output: whether each line that ranks print begins with the rank.
        prefix_timestamp: whether it begins with the time, too.
        verbose: whether to tell what is started.
        dry_run: whether to start nothing.
        mpirun: the one to use; None: beside Python, or on PATH.
        mpirun_args: more arguments for it.
    """

    script: tuple[str, ...]
    num_ranks: int
    spares: int = 0
    respawn: int = 0
    min_ranks: int = 1
    max_ranks: int | None = None
    max_failures: str | None = None
    reset_limit: int | None = None
    strict: bool = False
    stall_seconds: float | None = None
    kill_seconds: float = 60.0
    grace_seconds: float = 10.0
    restarts: int = 0
    log: str | None = None
    hosts: tuple[Host, ...] = ()
    hosts_from: str | None = None
    full_names: bool = False
    discovery: str | None = None
    most_found: int | None = None
    slots_per_host: int = 1
    elastic_seconds: float = ELASTIC_SECONDS
    interfaces: tuple[str, ...] = ()
    launch_agent: str = "ssh"
    variables: tuple[tuple[str, str], ...] = ()
    output: str | None = None
    prefix_output: bool = False
    prefix_timestamp: bool = False
    verbose: bool = False
    dry_run: bool = False
    mpirun: str | None = None
    mpirun_args: tuple[str, ...] = ()

    @property
    def num_seats(self) -> int:
        """Processes that sleep until they are needed: replacements, and places to grow into."""
        return self.respawn + max(0, (self.max_ranks or 0) - self.num_ranks)

    @property
    def num_processes(self) -> int:
        """All processes of the job."""
        return self.num_ranks + self.spares + self.num_seats

    @property
    def num_slots(self) -> int:
        """Ranks that the hosts may have; 0: there are none."""
        return sum(host.slots for host in self.hosts)

    @property
    def most_losses(self) -> int | None:
        """How many losses the job may have; None: any number."""
        return most_failures(self.max_failures, self.num_ranks)

    @property
    def remote_hosts(self) -> tuple[Host, ...]:
        """The hosts that are other machines than this one."""
        return tuple(host for host in self.hosts if not is_local(host))

    def on(self, hosts: tuple[Host, ...]) -> Options:
        """Return the same job on fewer hosts, with as many ranks and then spares as these have slots for."""
        slots = sum(host.slots for host in hosts)
        num_ranks = min(self.num_ranks, slots)
        return replace(self, hosts=hosts, num_ranks=num_ranks, spares=min(self.spares, slots - num_ranks))

    def on_found(self, hosts: tuple[Host, ...]) -> Options:
        """Return the same job on hosts that were found, with as many ranks as fit and may be."""
        slots = sum(host.slots for host in hosts)
        most = self.most_found or self.max_ranks or self.num_ranks
        return replace(self, hosts=hosts, num_ranks=min(slots, most), most_found=most)


def parse_options(
    argv: Sequence[str], environment: Environment, shell: Mapping[str, str] | None = None
) -> Options:
    """Return what the command line asks for; where it is silent, the environment and the scheduler speak.

    Args:
        argv: the command line without its first word.
        environment: what the shell asks for.
        shell: all of its variables; None: there are none.

    Returns:
        The options, checked.

    Raises:
        ConfigError: a value is refused, or an option is unknown.
    """
    parser = build_parser()
    own, script = split(parser, argv)
    refuse_foreign(own)
    given = vars(parser.parse_args(own))
    shell = shell or {}
    del given["check_build"]
    given["script"], unbuffered = read_script(("-m", *script) if given.pop("module") else tuple(script))
    given["mpirun_args"] = read_words("--mpirun-args", given["mpirun_args"])
    given["variables"] = (*unbuffered, *read_variables(given["variables"], shell))
    given["launch_agent"] = read_launch_agent(
        given["launch_agent"], given.pop("ssh_port"), given.pop("ssh_identity_file"), shell
    )
    given["interfaces"] = read_interfaces(given["interfaces"])
    given["prefix_output"] = given["prefix_output"] or given["prefix_timestamp"]
    for name in ("elastic_timeout", "slots_per_host"):
        option = f"--{name.replace('_', '-')}"
        unused = given[name] is not None and given["discovery"] is None
        require(not unused, option, given[name], "left out without --host-discovery-script")
    given["elastic_seconds"] = given.pop("elastic_timeout")
    allocation = _hosts(given, shell)
    return _checked(_filled(given, allocation, environment, shell))


def _filled(
    given: dict[str, Any], allocation: Allocation, environment: Environment, shell: Mapping[str, str]
) -> Options:
    """Fill in what the command line has left open."""
    discovers, slots = given["discovery"] is not None, sum(host.slots for host in allocation.hosts)
    fallbacks: dict[str, Any] = {
        "num_ranks": given["min_ranks"] if discovers else allocation.num_ranks or slots or None,
        "spares": environment.spares,
        "respawn": environment.seats,
        "min_ranks": environment.min_ranks,
        "max_ranks": environment.max_ranks,
        "max_failures": environment.max_failures,
        "stall_seconds": environment.stall_seconds,
        "log": environment.log,
        "restarts": RESTARTS_WITH_HOSTS if discovers or len(allocation.hosts) > 1 else 0,
        "slots_per_host": 1,
        "elastic_seconds": ELASTIC_SECONDS,
    }
    values: dict[str, Any] = {
        name: fallbacks.get(name) if value is None else value for name, value in given.items()
    }
    require(values["num_ranks"] is not None, "-np", "", "given: how many ranks to start")
    if values["respawn"] == BARE_RESPAWN:
        values["respawn"] = values["num_ranks"]
    values["hosts_from"] = allocation.source or None
    return Options(hosts=allocation.hosts, full_names=keeps_full_names(shell), **values)


def _checked(options: Options) -> Options:
    n = options.num_ranks
    require(options.min_ranks <= n, "--min-np", options.min_ranks, f"at most -np ({n})")
    most = options.max_ranks
    require(most is None or most >= n, "--max-np", most, f"at least -np ({n})")
    require_failures("--max-failures", options.max_failures)
    if options.interfaces and not options.remote_hosts and options.discovery is None:
        require_interfaces("--network-interfaces", options.interfaces)
    if options.output is not None:
        folder = Path(options.output)
        no_file = bool(options.output) and all(
            path.is_dir() for path in (folder, *folder.parents) if path.exists()
        )
        require(no_file, "--output-filename", options.output, "a directory, or one that can be made")
    if options.discovery is not None:
        found = shutil.which(options.discovery)
        require(
            found is not None,
            "--host-discovery-script",
            options.discovery,
            "a program that can be run (chmod +x)",
        )
        options = replace(options, discovery=found)
    return options


def _hosts(given: dict[str, Any], shell: Mapping[str, str]) -> Allocation:
    """Return the hosts: the command line's, else the scheduler's, else none."""
    hosts, hostfile = given.pop("hosts"), given.pop("hostfile")
    named = [("--hosts", hosts), ("--hostfile", hostfile), ("--host-discovery-script", given["discovery"])]
    (first, _), *others = [pair for pair in named if pair[1] is not None] or [("", None)]
    for option, value in others:
        require(False, option, value, f"left out where {first} is given")
    if hosts is not None:
        return Allocation(source="", hosts=parse_hosts(hosts))
    if hostfile is not None:
        return Allocation(source="", hosts=read_hostfile(hostfile))
    found = None if first else find_allocation(shell)
    return found or Allocation(source="", hosts=())
