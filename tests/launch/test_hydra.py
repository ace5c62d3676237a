"""What Hydra's mpiexec is told: MPICH's, and Intel's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elche.errors import ConfigError
from elche.mpi_launch.hosts import Host
from elche.mpi_launch.hydra import deal, hydra_command, refuse_what_hydra_lacks
from elche.mpi_launch.options import Options

HERE, THERE = Host("localhost", 1), Host("203.0.113.7", 2)
RANK = ["python", "train.py"]
ENDS = ["-n", "3", *RANK]
SENT = ["-genvlist", "A,PATH"]


@pytest.mark.parametrize(
    ("asked", "mpich", "intel"),
    [
        ({}, ENDS, ENDS),
        ({"hosts": (HERE,)}, ["-hosts", "localhost:1", *ENDS], ["-host", "localhost", *ENDS]),
        (
            {"hosts": (HERE, THERE)},
            ["-hosts", "localhost:1,203.0.113.7:2", *SENT, *ENDS],
            [*SENT, "-host", "localhost", "-n", "1", *RANK, ":", "-host", "203.0.113.7", "-n", "2", *RANK],
        ),
        ({"interfaces": ("eth0",)}, ["-iface", "eth0", *ENDS], ["-iface", "eth0", *ENDS]),
        ({"prefix_output": True}, ["-prepend-rank", *ENDS], ["-prepend-rank", *ENDS]),
        (
            {"prefix_output": True, "prefix_timestamp": True},
            ["-prepend-pattern", "[%t][%r] ", *ENDS],
            ["-prepend-pattern", "[%t][%r] ", *ENDS],
        ),
        (
            {"output": "/o", "mpirun_args": ("-v",)},
            ["-outfile-pattern", "/o/rank.%r/stdout", "-errfile-pattern", "/o/rank.%r/stderr", "-v", *ENDS],
            ["-outfile-pattern", "/o/rank.%r/stdout", "-errfile-pattern", "/o/rank.%r/stderr", "-v", *ENDS],
        ),
    ],
)
def test_the_command(asked: dict[str, Any], mpich: list[str], intel: list[str]) -> None:
    options = Options(script=("train.py",), num_ranks=3, **asked)
    for is_intel, expected in ((False, mpich), (True, intel)):
        command = hydra_command(options, mpirun="/no/mpirun", intel=is_intel, names=("A", "PATH"), rank=RANK)
        assert command == ["/no/mpirun", *expected]


def test_mpiexec_is_preferred_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "mpiexec").touch()
    options = Options(script=("train.py",), num_ranks=3)
    command = hydra_command(options, mpirun=str(tmp_path / "mpirun"), intel=True, names=(), rank=RANK)
    assert command[0] == str(tmp_path / "mpiexec")


@pytest.mark.parametrize(
    ("num", "slots", "counts"),
    [
        (1, (2, 2), (1, 0)),
        (2, (2, 2), (2, 0)),
        (3, (2, 2), (2, 1)),
        (4, (2, 2), (2, 2)),
        (5, (2, 2), (3, 2)),
        (9, (1, 3, 1), (3, 4, 2)),
    ],
)
def test_slots_are_filled_in_order_and_the_rest_goes_round(
    num: int, slots: tuple[int, ...], counts: tuple[int, ...]
) -> None:
    hosts = [Host(f"h{index}", count) for index, count in enumerate(slots)]
    dealt = dict(deal(num, hosts))
    assert tuple(dealt.get(host, 0) for host in hosts) == counts


def test_hydra_takes_one_interface() -> None:
    options = Options(script=("train.py",), num_ranks=3, interfaces=("eth0", "ib0"))
    with pytest.raises(ConfigError) as caught:
        refuse_what_hydra_lacks(options)
    assert str(caught.value) == "--network-interfaces must be one name: Hydra takes no more, got 'eth0,ib0'"
