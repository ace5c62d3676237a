"""`elche-run --check-build`: what is found here, in horovodrun's form. elche-doctor looks deeper."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

from elche.errors import ConfigError
from elche.mpi_launch.arguments import split
from elche.mpi_launch.command import Mpi, ask_version, find_mpirun, mpi_of, version_number
from elche.mpi_launch.parser import build_parser

CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")


def check_build(argv: Sequence[str]) -> str | None:
    """Return what is found here, if the command line asks for it; None: it does not.

    Args:
        argv: the command line without its first word.

    Returns:
        Several lines.

    Raises:
        ConfigError: an option is unknown or refused.
    """
    parser = build_parser()
    own, _ = split(parser, argv)
    if not {"-cb", "--check-build"}.intersection(own):
        return None
    asked = parser.parse_args(own)
    try:
        mpirun = find_mpirun(asked.mpirun)
    except ConfigError as error:
        return describe_build(installed(), Mpi.OTHER, "", str(error))
    version, features = ask_version(mpirun)
    return describe_build(installed(), mpi_of(version, features), version_number(version), mpirun)


def installed() -> dict[str, str]:
    """Return the versions of the packages that matter, of those that are installed; none is imported."""
    found = {}
    for name in ("elche", "torch", "mpi4py", "triton", *CUPY):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def describe_build(packages: dict[str, str], mpi: Mpi, version: str, mpirun: str) -> str:
    """Return the lines that tell what is there.

    Args:
        packages: names and versions.
        mpi: what mpirun can do.
        version: its version; "": unknown.
        mpirun: its path, or why there is none.

    Returns:
        The lines.
    """
    cupy = next((name for name in CUPY if name in packages), None)

    def line(holds: bool, text: str) -> str:
        return f"    [{'X' if holds else ' '}] {text}"

    def package(name: str, title: str) -> str:
        return line(name in packages, f"{title} {packages.get(name, '')}".rstrip())

    return "\n".join(
        (
            f"elche {packages.get('elche', '')}:",
            "",
            "Available frameworks:",
            package("torch", "PyTorch"),
            "",
            "Available launchers:",
            line(bool(version), f"{mpi.value} {version}".rstrip() + f" ({mpirun})"),
            line(mpi is Mpi.ULFM, "ranks may be lost, replaced and added"),
            "",
            "Available operations:",
            package("mpi4py", "MPI, through mpi4py"),
            line(cupy is not None, f"NCCL, through {cupy or 'cupy'} {packages.get(cupy or '', '')}".rstrip()),
            package("triton", "kernels of Triton"),
        )
    )
