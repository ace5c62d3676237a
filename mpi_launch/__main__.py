"""`elche-run`: start a job, see it to its end, start it again where that helps, and say what happened."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from elche.config import read_environment, variables
from elche.errors import ConfigError
from elche.mpi_launch.command import (
    Mpi,
    ask_mpi,
    count_cores,
    find_mpirun,
    job_variables,
    mpirun_command,
    refuse_what_needs_ulfm,
)
from elche.mpi_launch.grow import grow
from elche.mpi_launch.hosts import Host, addresses_towards, answering
from elche.mpi_launch.messages import say
from elche.mpi_launch.options import Options, parse_options
from elche.mpi_launch.signals import GROW_ONE, GROW_QUEUED, SignalPipe
from elche.mpi_launch.supervise import Outcome, Supervisor
from elche.mpi_launch.switchboard import Switchboard
from elche.mpi_launch.verdict import FAILED, FINISHED, HUNG_UP, INTERRUPTED, LOSSES, STALLED, TERMINATED

MEMORY, HERE = "/dev/shm", (Host("localhost", 1),)
WRONG_USAGE, BELOW_MIN_RANKS = 2, 4
CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, GROW_ONE, GROW_QUEUED)
VERDICTS = {
    FINISHED: "finished, with losses",
    FAILED: "failed",
    LOSSES: "finished, with losses (--strict)",
    BELOW_MIN_RANKS: "fewer ranks are left than --min-np",
    STALLED: "stalled",
    **dict.fromkeys((HUNG_UP, INTERRUPTED, TERMINATED), "interrupted"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: without its first word; None: this process's.

    Returns:
        The exit code, see --help.
    """
    argv = sys.argv[1:] if argv is None else argv
    try:
        if list(argv[:1]) == ["grow"]:
            say(grow(argv[1:]))
            return 0
        options = parse_options(argv, read_environment())
        mpirun = find_mpirun(options.mpirun)
        mpi = ask_mpi(mpirun)
        refuse_what_needs_ulfm(options, mpi, mpirun)
    except ConfigError as error:
        say(str(error))
        return WRONG_USAGE
    if mpi is not Mpi.ULFM:
        say(f"{mpirun} is {mpi.value}: a lost rank ends the job")
    return run(options, mpi, mpirun)


def run(options: Options, mpi: Mpi, mpirun: str) -> int:
    """Run the job, and again on the hosts that are left where it died though ranks could have gone on.

    Args:
        options: what was asked for.
        mpi: what mpirun can do.
        mpirun: its path.

    Returns:
        The exit code.
    """
    signals = SignalPipe(CAUGHT)
    snapshots = f"{MEMORY}/elche-{secrets.token_hex(16)}" if options.restarts else None
    for restarts_left in range(restarts := options.restarts, -1, -1):
        resume = restarts_left < restarts
        outcome = run_once(options, mpi, mpirun, signals, resume=resume, snapshots=snapshots)
        for line in outcome.lines:
            say(line)
        code = outcome.code
        if outcome.died_whole:
            say(f"the job died as a whole (mpirun ended with {outcome.mpirun_code})")
        if not (outcome.died_whole and restarts_left):
            break
        if options.hosts:
            options = options.on(answering(options.hosts, options.launch_agent))
        if options.num_ranks < options.min_ranks:
            say(f"the hosts that answer have slots for {options.num_ranks} ranks")
            code = BELOW_MIN_RANKS
            break
        where = f" on {','.join(map(str, options.hosts))}" if options.hosts else ""
        say(f"starting again with {options.num_ranks} ranks{where}; restarts left: {restarts_left - 1}")
    if resume and options.strict and code == FINISHED:
        code = LOSSES
    if snapshots is not None:
        answering(options.hosts or HERE, options.launch_agent, ("rm", "-rf", snapshots))
    if not outcome.started:
        say(f"mpirun ended with {outcome.mpirun_code} before any rank was started")
    return conclude(code, quiet=not outcome.lines and not resume)


def run_once(
    options: Options, mpi: Mpi, mpirun: str, signals: SignalPipe, *, resume: bool, snapshots: str | None
) -> Outcome:
    """Run the job once.

    Args:
        options: what was asked for.
        mpi: what mpirun can do.
        mpirun: its path.
        signals: this process's.
        resume: whether it ran before.
        snapshots: where each host keeps the job's state in memory; None: nowhere.

    Returns:
        How it ended.
    """
    remote = options.remote_hosts
    cores, shell = count_cores(os.sched_getaffinity(0)), variables()
    switchboard = Switchboard(secrets.token_hex(16), addresses_towards(remote) if remote else None, signals)
    guard = str(switchboard.address) if mpi.has_guards else None
    memory = MEMORY if Path(MEMORY).is_dir() else None
    with (
        contextlib.closing(switchboard),
        tempfile.TemporaryDirectory(prefix="elche-mpi-", dir=memory, ignore_cleanup_errors=True) as scratch,
    ):
        env = job_variables(
            options,
            shell,
            cores=cores,
            guard=guard,
            as_root=os.geteuid() == 0,
            resume=resume,
            snapshots=snapshots,
            scratch=None if remote else scratch,
        )
        command = mpirun_command(options, mpi, mpirun=mpirun, cores=cores, exported=env)
        return Supervisor(options, mpi, switchboard, signals, say).run(command, env)


def conclude(code: int, *, quiet: bool = False) -> int:
    """Say what the exit code means, unless all went well and there is nothing to say; return it."""
    if code != FINISHED or not quiet:
        say(f"{VERDICTS.get(code, 'ended')}; exit code {code}")
    return code


if __name__ == "__main__":
    sys.exit(main())
