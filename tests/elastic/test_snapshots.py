"""Snapshots in memory: written in time and by one rank of a host, and the newest of all hosts is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from elche.comm import memory
from elche.comm.base import Comm
from elche.config import Environment
from elche.elastic import checkpoint
from elche.elastic.snapshots import Snapshots


def shell(directory: Path | None, *, resume: bool = False, seconds: float = 1e-9) -> Environment:
    return Environment(
        snapshots=None if directory is None else str(directory), resume=resume, snapshot_seconds=seconds
    )


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_lowest_rank_of_a_host_keeps_the_newest(tmp_path: Path) -> None:
    def rank(comm: Comm) -> None:
        folder = tmp_path / str(comm.rank)
        snapshots = Snapshots(shell(folder))
        for windows in (0, 1, 2):  # nothing is worth keeping before the first window
            snapshots.keep(comm, windows, lambda windows=windows: {"windows": windows})

    memory.run(2, rank)
    assert names(tmp_path) == ["0"]
    assert names(tmp_path / "0") == ["window-000001.elche"]  # it took far more than 1e-9 / 50 seconds
    assert (tmp_path / "0").stat().st_mode & 0o777 == 0o700
    assert checkpoint.read(tmp_path / "0" / "window-000001.elche") == {"windows": 1}


def test_one_replaces_the_other_when_it_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("elche.elastic.snapshots.time.monotonic", lambda: now[0])
    comm, snapshots = memory.single(), Snapshots(shell(tmp_path, seconds=5.0))
    kept = []
    for now[0], windows in ((100.0, 7), (104.9, 8), (105.0, 9), (109.9, 10)):
        snapshots.keep(comm, windows, dict)
        kept.append(names(tmp_path))
    seven, nine = ["window-000007.elche"], ["window-000009.elche"]
    assert kept == [seven, seven, nine, nine]


def test_one_that_takes_long_is_written_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("elche.elastic.snapshots.time.monotonic", lambda: now[0])
    comm, snapshots = memory.single(), Snapshots(shell(tmp_path, seconds=5.0))

    def capture() -> dict[str, int]:
        now[0] += 1.0
        return {}

    snapshots.keep(comm, 1, capture)
    for now[0], newest in ((149.9, 1), (150.0, 2)):
        snapshots.keep(comm, 2, capture)
        assert names(tmp_path) == [checkpoint.file_name(newest)]


def test_without_a_directory_nothing_is_captured() -> None:
    Snapshots(shell(None)).keep(memory.single(), 3, lambda: pytest.fail("captured"))


def test_a_directory_that_cannot_be_written_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    snapshots = Snapshots(shell(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="no snapshots of this host from here on"):
        snapshots.keep(memory.single(), 1, dict)
    snapshots.keep(memory.single(), 2, lambda: pytest.fail("captured"))


@pytest.mark.parametrize(
    ("held", "windows", "taken"),
    [((3, 12, 9), 0, 12), ((None, None, 4), 0, 4), ((None, None, None), 0, None), ((3, 12, 9), 12, None)],
)
def test_all_take_the_newest_that_some_host_holds(
    tmp_path: Path, held: tuple[int | None, ...], windows: int, taken: int | None
) -> None:
    for rank, number in enumerate(held):
        if number is not None:
            state = checkpoint.pack({"windows": number, "from": rank})
            checkpoint.write(tmp_path / str(rank) / checkpoint.file_name(number), state)

    def rank(comm: Comm) -> list[object]:
        snapshots = Snapshots(shell(tmp_path / str(comm.rank), resume=True))
        restored: list[object] = []
        found = [snapshots.take_up(lambda step: step(comm), windows, restored.append) for _ in range(2)]
        assert found[1] is None  # once
        assert restored == [state for state in found if state is not None]
        return [state["windows"] for state in found if state is not None]

    assert memory.run(3, rank) == [[] if taken is None else [taken]] * 3


def test_a_job_that_was_not_started_again_takes_nothing(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / checkpoint.file_name(5), checkpoint.pack({}))
    assert Snapshots(shell(tmp_path)).take_up(lambda _: pytest.fail("asked"), 0, pytest.fail) is None
