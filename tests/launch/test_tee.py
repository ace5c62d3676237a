"""Copies of what a child prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elche.errors import ConfigError
from elche.mpi_launch.tee import make_folders, rank_folder

TEE = """
import subprocess, sys
from pathlib import Path
from elche.errors import ConfigError
from elche.mpi_launch.tee import Tee
tee = Tee(Path(sys.argv[1]), append=sys.argv[2] == "again")
child = subprocess.Popen(sys.argv[3:], stdout=tee.end_for_child(1), stderr=tee.end_for_child(2))
tee.start()
child.wait()
tee.finish()
"""


def tee(folder: Path, mode: str, *command: str) -> subprocess.CompletedProcess[bytes]:
    words = [sys.executable, "-c", TEE, str(folder), mode, *command]
    return subprocess.run(words, capture_output=True, timeout=60, check=True)


def test_both_streams_go_on_and_are_kept_byte_for_byte(tmp_path: Path) -> None:
    ran = tee(tmp_path / "a" / "b", "anew", "sh", "-c", r"printf 'no newline\r\377'; printf 'oh\n' >&2")
    assert (ran.stdout, ran.stderr) == (b"no newline\r\xff", b"oh\n")
    assert (tmp_path / "a" / "b" / "stdout").read_bytes() == b"no newline\r\xff"
    assert (tmp_path / "a" / "b" / "stderr").read_bytes() == b"oh\n"


def test_a_start_anew_begins_the_file_and_a_start_again_goes_on(tmp_path: Path) -> None:
    for mode, text in (("anew", "1"), ("anew", "2"), ("again", "3")):
        tee(tmp_path, mode, "echo", text)
    assert (tmp_path / "stdout").read_text() == "2\n3\n"


def test_much_output_is_whole(tmp_path: Path) -> None:
    ran = tee(tmp_path, "anew", sys.executable, "-c", "print('x' * 1_000_003)")
    assert len(ran.stdout) == (tmp_path / "stdout").stat().st_size == 1_000_004


def test_one_that_keeps_the_pipe_open_is_not_waited_for(tmp_path: Path) -> None:
    ran = tee(tmp_path, "anew", "sh", "-c", "sleep 30 >/dev/null 2>&3 3>&1 & echo out")
    assert ran.stdout == b"out\n"


@pytest.mark.parametrize(
    ("rank", "num_ranks", "name"),
    [(0, 1, "rank.0"), (9, 10, "rank.9"), (3, 11, "rank.03"), (7, 101, "rank.007")],
)
def test_names_sort(rank: int, num_ranks: int, name: str) -> None:
    assert rank_folder("out", rank, num_ranks) == Path("out") / name


def test_hydras_directories_are_made(tmp_path: Path) -> None:
    make_folders(str(tmp_path / "out"), 11)
    assert (tmp_path / "out" / "rank.10").is_dir()


def test_a_directory_that_cannot_be_made_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        make_folders("/proc/none", 0)
    said = (
        "--output-filename must be a directory that can be made (No such file or directory), got '/proc/none'"
    )
    assert str(caught.value) == said
