"""`Environment`: what the shell asks for and what a launcher tells, as plain values.

It is given the variables; `elche.config` alone reads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from elche.errors import ConfigError, require

SNAPSHOT_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What the shell asks for, and what the launcher tells.

    Attributes:
        log: path of the event log (ELCHE_LOG); `{rank}` in it is replaced; None: no log.
        backend: "auto", "mpi" or "memory" (ELCHE_BACKEND); with "mpi" gradients go over MPI, also
            where NCCL or shared memory could sum them.
        stall_seconds: silence within a batch after which a rank is set aside; where a loss ends the job, how
            long any wait may last (ELCHE_STALL_SECONDS); None: the defaults.
        checkpoint: directory of checkpoints (ELCHE_CHECKPOINT); None: none are written.
        spares: how many processes are warm spares (ELCHE_SPARES): the last but the seats.
        seats: how many sleep until a slot is to be filled or the job grows (ELCHE_RESPAWN): the last.
        min_ranks: with fewer ranks the job ends (ELCHE_MIN_RANKS).
        max_ranks: so many ranks the job may have (ELCHE_MAX_RANKS); None: those it started with.
        max_failures: most losses, "3", or "25%" of the first ranks (ELCHE_MAX_FAILURES); None: no limit.
        resume: whether the launcher has started the job again (ELCHE_RESUME).
        snapshots: directory in memory for a job that may be started again (ELCHE_SNAPSHOTS), set by
            elche-run; None: none are kept.
        snapshot_seconds: at most so often one is written (ELCHE_SNAPSHOT_SECONDS).
        guard: how this process talks to its guard (ELCHE_GUARD), see `elche.mpi_launch.messages`; None: none.
        fault_tolerant: whether Open MPI was started so that the job outlives a lost process.
        under_mpi: whether an MPI launcher started this process.
        under_torchrun: whether torchrun started it, beside others, and no MPI launcher.
        under_srun: whether Slurm's srun started it, beside others, and told it of no MPI.
        num_started: how many processes its launcher says to have started; None: it does not say.
    """

    log: str | None = None
    backend: str = "auto"
    stall_seconds: float | None = None
    checkpoint: str | None = None
    spares: int = 0
    seats: int = 0
    min_ranks: int = 1
    max_ranks: int | None = None
    max_failures: str | None = None
    resume: bool = False
    snapshots: str | None = None
    snapshot_seconds: float = SNAPSHOT_SECONDS
    guard: str | None = None
    fault_tolerant: bool = False
    under_mpi: bool = False
    under_torchrun: bool = False
    under_srun: bool = False
    num_started: int | None = None


KNOWN = (
    "ELCHE_BACKEND",
    "ELCHE_CHECKPOINT",
    "ELCHE_GUARD",
    "ELCHE_LOG",
    "ELCHE_MAX_FAILURES",
    "ELCHE_MAX_RANKS",
    "ELCHE_MIN_RANKS",
    "ELCHE_RESPAWN",
    "ELCHE_RESUME",
    "ELCHE_SNAPSHOTS",
    "ELCHE_SNAPSHOT_SECONDS",
    "ELCHE_SPARES",
    "ELCHE_STALL_SECONDS",
)
BACKENDS = ("auto", "mpi", "memory")
SWITCH = {"": False, "0": False, "1": True}
# One variable of each launcher: Open MPI, MPICH and Intel MPI, PMIx (Slurm, PRRTE), MVAPICH.
LAUNCHERS = (
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "PMI_RANK",
    "PMIX_RANK",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_SIZE",
)
# How many processes they have started, they say; srun comes last, for mpirun may run inside a step.
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
FAULT_TOLERANT = "OMPI_MCA_mpi_ft_enable"  # what `mpirun --with-ft ulfm` tells its processes


def parse_environment(environ: Mapping[str, str]) -> Environment:
    """Return what the variables say; an empty one says nothing.

    Args:
        environ: the variables.

    Returns:
        The settings, defaults filled in.

    Raises:
        ConfigError: a variable that begins with ELCHE_ is unknown, or its value is refused.
    """
    for name in sorted(environ):
        if name.startswith("ELCHE_") and name not in KNOWN:
            raise ConfigError(f"{name} is not a setting of elche; known are {', '.join(KNOWN)}")
    backend = environ.get("ELCHE_BACKEND") or "auto"
    require(backend in BACKENDS, "ELCHE_BACKEND", backend, f"one of {', '.join(BACKENDS)}")
    resume = environ.get("ELCHE_RESUME", "")
    require(resume in SWITCH, "ELCHE_RESUME", resume, "0 or 1")
    under_mpi = any(name in environ for name in LAUNCHERS)
    num_started = _num_started(environ)
    return Environment(
        log=environ.get("ELCHE_LOG") or None,
        backend=backend,
        stall_seconds=_seconds(environ, "ELCHE_STALL_SECONDS"),
        checkpoint=environ.get("ELCHE_CHECKPOINT") or None,
        spares=_count(environ, "ELCHE_SPARES", 0) or 0,
        seats=_count(environ, "ELCHE_RESPAWN", 0) or 0,
        min_ranks=_count(environ, "ELCHE_MIN_RANKS", 1) or 1,
        max_ranks=_count(environ, "ELCHE_MAX_RANKS", 1),
        max_failures=require_failures("ELCHE_MAX_FAILURES", environ.get("ELCHE_MAX_FAILURES") or None),
        resume=SWITCH[resume],
        snapshots=environ.get("ELCHE_SNAPSHOTS") or None,
        snapshot_seconds=_seconds(environ, "ELCHE_SNAPSHOT_SECONDS") or SNAPSHOT_SECONDS,
        guard=environ.get("ELCHE_GUARD") or None,
        fault_tolerant=environ.get(FAULT_TOLERANT, "").lower() in ("1", "true", "yes"),
        under_mpi=under_mpi,
        under_torchrun=not under_mpi and environ.get("WORLD_SIZE", "1") != "1" and "LOCAL_RANK" in environ,
        under_srun=not under_mpi and (num_started or 1) > 1,
        num_started=num_started,
    )


def most_failures(text: str | None, num_ranks: int) -> int | None:
    """Return how many of `num_ranks` may be lost by "3" or "25%"; None: any number."""
    if text is None:
        return None
    return num_ranks * int(text[:-1]) // 100 if text.endswith("%") else int(text)


def require_failures(name: str, text: str | None) -> str | None:
    """Return `text` if it is None, a number of losses such as "3", or a share of the ranks such as "25%"."""
    number, is_share = ("", False) if text is None else (text.removesuffix("%"), text.endswith("%"))
    holds = number.isascii() and number.isdigit() and (not is_share or int(number) <= 100)
    require(text is None or holds, name, text, "an integer of at least 0, or a percentage from 0% to 100%")
    return text


def _num_started(environ: Mapping[str, str]) -> int | None:
    """What the launcher says; srun's word counts in a step of its own, not in the shell around it."""
    in_step = "SLURM_STEP_ID" in environ and "SLURM_PROCID" in environ
    for name in SIZES:
        text = environ.get(name, "")
        if text.isascii() and text.isdigit() and (in_step or not name.startswith("SLURM_")):
            return int(text)
    return None


def _count(environ: Mapping[str, str], name: str, least: int) -> int | None:
    text = environ.get(name)
    if not text:
        return None
    holds = text.isascii() and text.isdigit() and int(text) >= least
    require(holds, name, text, f"an integer of at least {least}")
    return int(text)


def _seconds(environ: Mapping[str, str], name: str) -> float | None:
    text = environ.get(name)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    require(0 < seconds < math.inf, name, text, "a number of seconds above 0")
    return seconds
