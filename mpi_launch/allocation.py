"""Which hosts a scheduler has given: Slurm's allocation, or the MPI operator's host file on Kubernetes.

Pure functions of the variables that they set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from elche.errors import ConfigError, require
from elche.mpi_launch.hosts import Host, checked_hosts, read_hostfile

# Who names a host file: Open MPI 4 (the MPI operator sets it for 5, too), Open MPI 5, Intel MPI, MPICH.
HOSTFILES = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "I_MPI_HYDRA_HOST_FILE",
    "HYDRA_HOST_FILE",
)
MOST_HOSTS = 65_536
# What makes mpirun look past Slurm: Open MPI 5, Open MPI 4, MPICH, Intel MPI.
PAST_SLURM = {
    "PRTE_MCA_ras": "^slurm",
    "PRTE_MCA_plm": "^slurm",
    "OMPI_MCA_ras": "^slurm",
    "OMPI_MCA_plm": "^slurm",
    "HYDRA_RMK": "user",
    "HYDRA_LAUNCHER": "ssh",
    "I_MPI_HYDRA_RMK": "user",
    "I_MPI_HYDRA_BOOTSTRAP": "ssh",
}


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What a scheduler has given to this job.

    Attributes:
        source: who says so, in words.
        hosts: the hosts and how many ranks each may have.
        num_ranks: how many ranks were asked for; None: as many as there are slots.
    """

    source: str
    hosts: tuple[Host, ...]
    num_ranks: int | None = None


def find_allocation(shell: Mapping[str, str]) -> Allocation | None:
    """Return what the scheduler has given; None: there is none.

    Args:
        shell: the variables.

    Returns:
        The hosts of a host file that a variable names, else Slurm's.

    Raises:
        ConfigError: what a variable says cannot be understood, or its file cannot be read.
    """
    for name in HOSTFILES:
        if shell.get(name):
            return Allocation(source=name, hosts=read_hostfile(shell[name], name))
    nodes = shell.get("SLURM_JOB_NODELIST") or shell.get("SLURM_NODELIST")
    if not (shell.get("SLURM_JOB_ID") and nodes):
        return None
    names = expand_nodes(nodes)
    slots = shell.get("SLURM_TASKS_PER_NODE")
    per_node = [1] * len(names) if not slots else expand_tasks(slots)
    require(
        len(per_node) == len(names),
        "SLURM_TASKS_PER_NODE",
        slots,
        f"one number for each of {len(names)} nodes",
    )
    hosts = checked_hosts("SLURM_JOB_NODELIST", list(zip(names, map(str, per_node), strict=True)))
    tasks = shell.get("SLURM_NTASKS")
    return Allocation(
        source=f"Slurm job {shell['SLURM_JOB_ID']}",
        hosts=hosts,
        num_ranks=_count("SLURM_NTASKS", tasks) if tasks else None,
    )


def past_slurm(hosts: Sequence[Host], shell: Mapping[str, str], this_host: str) -> dict[str, str]:
    """Return the variables by which mpirun goes to hosts that Slurm has not given to this job.

    Within a job every mpirun asks Slurm for its nodes, and refuses others, or looks for srun to reach them.

    Args:
        hosts: those of the job.
        shell: the variables.
        this_host: what Slurm may call this machine.

    Returns:
        Names and values; none where there is no Slurm, or all hosts are its nodes.
    """
    nodes = shell.get("SLURM_JOB_NODELIST") or shell.get("SLURM_NODELIST")
    if not (hosts and nodes and shell.get("SLURM_JOB_ID")):
        return {}
    try:
        given = set(expand_nodes(nodes))
    except ConfigError:
        given = set()
    named = {this_host if host.name == "localhost" else host.name for host in hosts}
    return {} if named <= given else dict(PAST_SLURM)


def refuse_many_launchers(shell: Mapping[str, str]) -> None:
    """Refuse to start a job in each of many processes.

    Args:
        shell: the variables.

    Raises:
        ConfigError: srun or mpirun has started this process beside others.
    """
    in_step = "SLURM_STEP_ID" in shell and "SLURM_PROCID" in shell
    for launcher, name, counts in (
        ("srun", "SLURM_STEP_NUM_TASKS", in_step),
        ("mpirun", "OMPI_COMM_WORLD_SIZE", True),
        ("mpirun", "PMI_SIZE", True),
    ):
        if counts and shell.get(name, "1") not in ("", "1"):
            raise ConfigError(
                f"{launcher} has started {shell[name]} of these ({name}), and each would start a job of its "
                f"own: elche-run starts the ranks itself, call it once and without {launcher}"
            )


def kubernetes_agent(shell: Mapping[str, str]) -> str:
    """Return what runs a command on a host: ssh, as the MPI operator's variables want it.

    Args:
        shell: the variables.

    Returns:
        The command.
    """
    names = ("OMPI_MCA_plm_rsh_args", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", "HYDRA_LAUNCH_EXTRA_ARGS")
    extra = next((shell[name] for name in names if shell.get(name)), "")
    return f"{shell.get('OMPI_MCA_plm_rsh_agent') or 'ssh'} {extra}".strip()


def keeps_full_names(shell: Mapping[str, str]) -> bool:
    """Return whether hosts are known by their full names only, as the MPI operator's are."""
    return shell.get("OMPI_MCA_orte_keep_fqdn_hostnames", "").lower() in ("1", "true", "yes")


def expand_nodes(text: str) -> list[str]:
    """Return the names in Slurm's short form.

    Args:
        text: SLURM_JOB_NODELIST.

    Returns:
        The names, in their order.

    Raises:
        ConfigError: a bracket or a range is no good, or there are too many names.

    Example:
        >>> expand_nodes("n[08-10,12],login")
        ['n08', 'n09', 'n10', 'n12', 'login']
    """
    names: list[str] = []
    for word in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+|.", text.replace(" ", "")):
        if word != ",":
            for name in _expanded(word, text):
                names.append(name)
                _require_nodes(len(names) <= MOST_HOSTS, text)
    _require_nodes(bool(names), text)
    return names


def expand_tasks(text: str) -> list[int]:
    """Return the numbers in Slurm's short form: "2(x3),1" is 2, 2, 2, 1.

    Args:
        text: SLURM_TASKS_PER_NODE.

    Returns:
        The tasks of each node.

    Raises:
        ConfigError: it is something else.
    """
    found: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", item.strip(), re.ASCII)
        require(match is not None, "SLURM_TASKS_PER_NODE", text, "numbers such as 2(x3),1")
        found += [int(match[1])] * int(match[2] or 1) if match else []
        require(len(found) <= MOST_HOSTS, "SLURM_TASKS_PER_NODE", text, f"of at most {MOST_HOSTS} nodes")
    return found


def _expanded(word: str, text: str) -> Iterator[str]:
    """Every name of one word, its first bracket expanded, then those behind it."""
    match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]+)\](.*)", word)
    if match is None:
        _require_nodes(not set(word) & set("[]"), text)
        yield word
        return
    for item in match[2].split(","):
        bounds = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", item, re.ASCII)
        first, last = (bounds[1], bounds[2] or bounds[1]) if bounds else ("1", "0")
        _require_nodes(int(first) <= int(last) < int(first) + MOST_HOSTS, text)
        for number in range(int(first), int(last) + 1):
            for rest in _expanded(match[3], text):
                yield f"{match[1]}{number:0{len(first)}d}{rest}"


def _require_nodes(holds: bool, text: str) -> None:
    require(
        holds,
        "SLURM_JOB_NODELIST",
        text,
        f"names such as n[1-3,7],m2, at most {MOST_HOSTS}, or give -H yourself",
    )


def _count(name: str, text: str) -> int:
    require(text.isascii() and text.isdigit() and int(text) >= 1, name, text, "an integer of at least 1")
    return int(text)
