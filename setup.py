"""Only where the outer folders install; everything else about the package is in pyproject.toml.

PyPI's `kernels` belongs to somebody else, and a top-level `kernels` would overwrite it silently.
So `kernels/` and `mpi_launch/` lie beside `elche/` in the tree and install inside it.
"""

from setuptools import find_packages, setup

OUTER = {
    "elche.kernels": "kernels",
    "elche.mpi_launch": "mpi_launch",
    "elche.mpi_launch.doctor": "mpi_launch/doctor",
}

setup(
    package_dir=OUTER,
    packages=[*find_packages(include=["elche", "elche.*"]), *OUTER],
)
