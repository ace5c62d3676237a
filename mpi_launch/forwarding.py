"""Which of this shell's variables ranks on other hosts get: all that may mean there what they mean here."""

from __future__ import annotations

from collections.abc import Iterable

# What belongs to this machine, this shell, this mpirun or this scheduler, and would be wrong elsewhere.
KEPT_HERE = (
    "HOME", "HOSTNAME", "LOGNAME", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "TMPDIR", "USER", "_",
)  # fmt: skip
KEPT_HERE_PREFIXES = (
    "BASH_", "DBUS_", "DISPLAY", "HYDRA_", "I_MPI_HYDRA_", "KUBERNETES_", "K_MPI_", "NVIDIA_DRIVER_",
    "NVIDIA_VISIBLE_", "OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "SSH_", "XDG_",
)  # fmt: skip


def forwarded(names: Iterable[str], asked: Iterable[str] = ()) -> list[str]:
    """Return the names of the variables that other hosts get.

    Args:
        names: those of the job's environment.
        asked: those that the user has named: they go whatever they are called.

    Returns:
        The names, sorted.
    """
    return sorted({name for name in names if _means_the_same(name)} | set(asked))


def _means_the_same(name: str) -> bool:
    return name.isidentifier() and name not in KEPT_HERE and not name.startswith(KEPT_HERE_PREFIXES)
