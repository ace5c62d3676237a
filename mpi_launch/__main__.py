"""`elche-run`: start a job, see it to its end, start it again where that helps, and say what happened."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from elche.config import read_environment, variables
from elche.errors import ConfigError
from elche.mpi_launch.allocation import refuse_many_launchers
from elche.mpi_launch.build import check_build
from elche.mpi_launch.command import (
    Mpi,
    ask_mpi,
    count_cores,
    find_mpirun,
    job_variables,
    mpirun_command,
    refuse_what_mpi_lacks,
    refuse_what_needs_ulfm,
)
from elche.mpi_launch.discovery import Discovery
from elche.mpi_launch.dry_run import DRAWN, describe_start
from elche.mpi_launch.grow import grow
from elche.mpi_launch.hosts import Host, addresses_towards, answering
from elche.mpi_launch.messages import say
from elche.mpi_launch.options import Options, parse_options
from elche.mpi_launch.signals import GROW_ONE, GROW_QUEUED, STOPS, SignalPipe, Stopped
from elche.mpi_launch.supervise import Outcome, Supervisor
from elche.mpi_launch.switchboard import Switchboard
from elche.mpi_launch.tee import make_folders
from elche.mpi_launch.verdict import FAILED, FINISHED, HUNG_UP, INTERRUPTED, LOSSES, STALLED, TERMINATED

MEMORY, HERE = "/dev/shm", (Host("localhost", 1),)
WRONG_USAGE, BELOW_MIN_RANKS = 2, 4
CAUGHT = (*STOPS, signal.SIGCHLD, GROW_ONE, GROW_QUEUED)
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
            return FINISHED
        build = check_build(argv)
        if build is None:
            return start(argv)
        sys.stdout.write(f"{build}\n")
        return FINISHED
    except ConfigError as error:
        say(str(error))
        return WRONG_USAGE
    except Stopped as stopped:
        return conclude(stopped.exit_code)


def start(argv: Sequence[str]) -> int:
    """Find MPI and hosts, and run the job there, or show how it would be.

    Args:
        argv: the command line.

    Returns:
        The exit code.
    """
    shell = variables()
    options = parse_options(argv, read_environment(), shell)
    refuse_many_launchers(shell)
    mpirun = find_mpirun(options.mpirun)
    mpi = ask_mpi(mpirun)
    refuse_what_needs_ulfm(options, mpi, mpirun)
    refuse_what_mpi_lacks(options, mpi, mpirun)
    if not mpi.has_guards:
        options = replace(options, restarts=0)  # nobody would tell a rank's fault from a host's
    if mpi is not Mpi.ULFM:
        restarts = "" if mpi.has_guards else ", and --restarts is no use"
        say(f"{mpirun} is {mpi.value}: a lost rank ends the job{restarts}")
    if options.hosts_from:
        say(f"hosts of {options.hosts_from}: {','.join(map(str, options.hosts))}")
    signals = SignalPipe(CAUGHT)
    if options.discovery is None:
        return run(options, mpi, mpirun, signals, None)
    with contextlib.closing(Discovery(options.discovery, options.slots_per_host)) as discovery:
        found = options.on_found(discovery.wait_for(options.num_ranks, options.elastic_seconds, signals, say))
        if found.num_slots >= options.num_ranks:
            return run(found, mpi, mpirun, signals, discovery)
    say(f"{found.num_slots} slots after {options.elastic_seconds:g} s, -np is {options.num_ranks}")
    return conclude(BELOW_MIN_RANKS)


def run(options: Options, mpi: Mpi, mpirun: str, signals: SignalPipe, discovery: Discovery | None) -> int:
    """Run the job, and again on the hosts that are left where it died though ranks could have gone on.

    With --dry-run, print what would be started instead.

    Args:
        options: what was asked for.
        mpi: what mpirun can do.
        mpirun: its path.
        signals: this process's.
        discovery: finds hosts; None: they stay what they are.

    Returns:
        The exit code.
    """
    if options.dry_run:
        command, env = start_of(options, mpi, mpirun, resume=False, drawn=DRAWN)
        sys.stdout.write(f"{describe_start(command, env, variables())}\n")
        return FINISHED
    snapshots = f"{MEMORY}/elche-{secrets.token_hex(16)}" if options.restarts else None
    for restarts_left in range(restarts := options.restarts, -1, -1):
        resume = restarts_left < restarts
        outcome = run_once(options, mpi, mpirun, signals, discovery, resume=resume, snapshots=snapshots)
        for line in outcome.lines:
            say(line)
        code = outcome.code
        if outcome.died_whole:
            say(f"the job died as a whole (mpirun ended with {outcome.mpirun_code})")
        if not (outcome.died_whole and restarts_left):
            break
        if options.reset_limit is not None:
            left = options.reset_limit - outcome.num_changes - 1
            if left < 0:
                say("--reset-limit allows no other start")
                break
            options = replace(options, reset_limit=left)
        try:
            options = with_hosts_left(options, signals, discovery)
        except Stopped as stopped:
            code = stopped.exit_code
            break
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


def with_hosts_left(options: Options, signals: SignalPipe, discovery: Discovery | None) -> Options:
    """Return the job on the hosts that answer: those that it was started on, or those that are found now."""
    if discovery is not None:
        found = discovery.wait_for(options.min_ranks, options.elastic_seconds, signals, say)
        return options.on_found(answering(found, options.launch_agent))
    return options.on(answering(options.hosts, options.launch_agent)) if options.hosts else options


def run_once(
    options: Options,
    mpi: Mpi,
    mpirun: str,
    signals: SignalPipe,
    discovery: Discovery | None,
    *,
    resume: bool,
    snapshots: str | None,
) -> Outcome:
    """Run the job once.

    Args:
        options: what was asked for.
        mpi: what mpirun can do.
        mpirun: its path.
        signals: this process's.
        discovery: finds hosts; None: they stay what they are.
        resume: whether it ran before.
        snapshots: where each host keeps the job's state in memory; None: nowhere.

    Returns:
        How it ended.
    """
    remote = options.remote_hosts
    switchboard = Switchboard(secrets.token_hex(16), addresses_towards(remote) if remote else None, signals)
    memory = MEMORY if Path(MEMORY).is_dir() else None
    with (
        contextlib.closing(switchboard),
        tempfile.TemporaryDirectory(prefix="elche-mpi-", dir=memory, ignore_cleanup_errors=True) as scratch,
    ):
        drawn = {"ELCHE_GUARD": str(switchboard.address), "ELCHE_SNAPSHOTS": snapshots, "SCRATCH": scratch}
        command, env = start_of(options, mpi, mpirun, resume=resume, drawn=drawn)
        if options.verbose:
            say(shlex.join(command))
        if options.output is not None:
            make_folders(options.output, 0 if mpi.has_guards else options.num_processes)
        return Supervisor(options, mpi, switchboard, signals, say, discovery).run(command, env)


def start_of(
    options: Options, mpi: Mpi, mpirun: str, *, resume: bool, drawn: Mapping[str, str | None]
) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts the job, and its environment.

    Args:
        options: what was asked for.
        mpi: what mpirun can do.
        mpirun: its path.
        resume: whether it ran before.
        drawn: what is drawn anew at each start: see `elche.mpi_launch.dry_run`.

    Returns:
        Both.
    """
    cores = count_cores(os.sched_getaffinity(0))
    env = job_variables(
        options,
        mpi,
        variables(),
        cores=cores,
        guard=drawn["ELCHE_GUARD"] if mpi.has_guards else None,
        as_root=os.geteuid() == 0,
        resume=resume,
        snapshots=drawn["ELCHE_SNAPSHOTS"] if options.restarts else None,
        scratch=None if options.remote_hosts else drawn["SCRATCH"],
    )
    return mpirun_command(options, mpi, mpirun=mpirun, cores=cores, exported=env), env


def conclude(code: int, *, quiet: bool = False) -> int:
    """Say what the exit code means, unless all went well and there is nothing to say; return it."""
    if code != FINISHED or not quiet:
        say(f"{VERDICTS.get(code, 'ended')}; exit code {code}")
    return code


if __name__ == "__main__":
    sys.exit(main())
