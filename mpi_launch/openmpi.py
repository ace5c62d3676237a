"""The words that mpirun of Open MPI takes, of release 5 (PRRTE) and of release 4 (ORTE)."""

from __future__ import annotations

from collections.abc import Sequence

from elche.mpi_launch.options import Options


def openmpi_words(
    options: Options, *, release: int, elastic: bool, crowded: bool, names: Sequence[str]
) -> list[str]:
    """Return the words between mpirun and "-np".

    Args:
        options: what was asked for.
        release: 4 or 5.
        elastic: whether the job shall outlive lost ranks.
        crowded: whether there are more processes than slots or cores.
        names: variables that other hosts get; mpirun reads their values where it runs.

    Returns:
        The words.
    """
    words = ["--with-ft", "ulfm"] if elastic else []
    if options.hosts:
        words += ["--host", ",".join(map(str, options.hosts))]
    if crowded:
        words += ["--oversubscribe"]
    if (
        crowded or options.remote_hosts
    ):  # whose cores nobody has counted: more ranks than these would not start
        words += ["--bind-to", "none"]
    if options.remote_hosts:
        words += _daemon("plm_ssh_agent", "plm_rsh_agent", options.launch_agent, release)
        if options.full_names:
            words += _daemon("prte_keep_fqdn_hostnames", "orte_keep_fqdn_hostnames", "1", release)
        words += [word for name in names for word in ("-x", name)]
    if options.interfaces:
        interfaces = ",".join(options.interfaces)
        words += ["--mca", "btl_tcp_if_include", interfaces]
        if options.remote_hosts:  # among the processes of one machine PRRTE refuses the loopback
            words += _daemon("prte_if_include", "oob_tcp_if_include", interfaces, release)
    return [*words, *_prefix(options, release), *options.mpirun_args]


def _daemon(name: str, name_in_4: str, value: str, release: int) -> list[str]:
    """What the daemons on the hosts have to know; release 5 asks for it by another word."""
    return ["--mca", name_in_4, value] if release == 4 else ["--prtemca", name, value]


def _prefix(options: Options, release: int) -> list[str]:
    if not options.prefix_output:
        return []
    if release == 4:
        return ["--tag-output", *(["--timestamp-output"] if options.prefix_timestamp else [])]
    return ["--output", "rank,timestamp" if options.prefix_timestamp else "rank"]
