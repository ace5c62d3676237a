"""Options of horovodrun that mean nothing here: refused by name, with the reason and the remedy."""

from __future__ import annotations

from collections.abc import Sequence

from elche.errors import ConfigError

_TUNING = "there is nothing to tune: gradients travel in flat buckets; leave it out"
_STALLS = "elche watches ranks by itself; --stall-seconds S sets how long a batch may last"
_LOG = "elche logs events, not levels; --log PATH keeps them, --verbose shows what is started"
_MPI = "MPI is the only way that ranks are started; leave it out"
WHY = {
    "--timeline-filename": "the timeline is not built yet; --log PATH keeps an event log",
    "--timeline-mark-cycles": "the timeline is not built yet",
    "--config-file": "options are given on the command line, or by the variables that --help names",
    "--start-timeout": "mpirun has no such limit; --elastic-timeout bounds the wait for hosts, and "
    "--grace-seconds that after a failure before elche.init()",
    "--disable-cache": "nothing is cached between runs; leave it out",
    "--blacklist-cooldown-range": "no host is banned for a time: those that do not answer are left out",
    "--gloo": "there is no gloo here; leave it out, ranks talk by MPI and NCCL",
    "--mpi": _MPI,
    "--jsrun": _MPI,
    "--tcp": "give MPI's own words: --mpirun-args='--mca pml ob1 --mca btl self,sm,tcp'",
    "--binding-args": "give them to mpirun: --mpirun-args='--bind-to core'",
    "--gloo-timeout-seconds": _STALLS,
    "--stall-check": _STALLS,
    "--no-stall-check": _STALLS,
    "--stall-check-warning-time-seconds": _STALLS,
    "--stall-check-shutdown-time-seconds": _STALLS,
    "--mpi-threads-disable": "elche asks MPI for what it needs; leave it out",
    "--no-mpi-threads-disable": "elche asks MPI for what it needs; leave it out",
    "--num-nccl-streams": "gradients are summed in PyTorch's own stream",
    "--thread-affinity": "no thread is pinned; --mpirun-args='--bind-to core' binds ranks",
    "--log-level": _LOG,
    "--log-with-timestamp": _LOG,
    "--log-without-timestamp": _LOG,
    "--log-hide-timestamp": _LOG,
    "--no-log-hide-timestamp": _LOG,
    **dict.fromkeys(
        (
            "--fusion-threshold-mb",
            "--cycle-time-ms",
            "--cache-capacity",
            "--hierarchical-allreduce",
            "--no-hierarchical-allreduce",
            "--hierarchical-allgather",
            "--no-hierarchical-allgather",
            "--autotune",
            "--no-autotune",
            "--autotune-log-file",
            "--autotune-warmup-samples",
            "--autotune-steps-per-sample",
            "--autotune-bayes-opt-max-samples",
            "--autotune-gaussian-process-noise",
        ),
        _TUNING,
    ),
}


def refuse_foreign(own: Sequence[str]) -> None:
    """Refuse options that horovodrun has and `elche-run` has not.

    Args:
        own: the words before the script, each value tied to its option by "=".

    Raises:
        ConfigError: one of them is horovodrun's alone.
    """
    for name in (word.partition("=")[0] for word in own):
        if name in WHY:
            raise ConfigError(f"{name} is an option of horovodrun, not of elche-run: {WHY[name]}")
