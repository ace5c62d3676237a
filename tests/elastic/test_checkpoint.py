"""Checkpoints: what is packed comes back; what is damaged is refused; a reader never sees half of one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from elche.elastic import checkpoint
from elche.errors import ConfigError

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip
HEADER_BYTES = 52  # 8 of magic, 4 of version, 8 of length, 32 of SHA-256


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_come_back_bit_for_bit(dtype: torch.dtype) -> None:
    values = torch.tensor([0, 1, 2, 3, 5, 7]).to(dtype)
    shapes = {"vector": values, "matrix": values.reshape(2, 3), "number": values[3], "none": values[:0]}
    there = checkpoint.unpack(checkpoint.pack(shapes))
    for name, tensor in shapes.items():
        assert (there[name].dtype, there[name].shape) == (dtype, tensor.shape)
        assert bits(there[name]) == bits(tensor)
    assert checkpoint.digest(there) == checkpoint.digest(shapes)


def test_strides_and_views() -> None:
    matrix = torch.arange(12.0).reshape(3, 4)
    state = {
        "transposed": matrix.T,
        "strided": matrix[:, ::2],
        "expanded": torch.tensor([2.0]).expand(3),
        "channels_last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "parameter": nn.Parameter(torch.ones(2)),
    }
    there = checkpoint.unpack(checkpoint.pack(state))
    assert there["transposed"].tolist() == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    assert there["strided"].tolist() == [[0, 2], [4, 6], [8, 10]]
    assert there["expanded"].tolist() == [2, 2, 2]
    assert there["channels_last"].stride() == state["channels_last"].stride()
    assert there["conjugate"].tolist() == [1 - 2j]
    assert checkpoint.digest(there) == checkpoint.digest(state)


def test_plain_values_come_back() -> None:
    state = {
        "none": None, "yes": True, "big": -(3**99), "pi": 3.14, "nan": float("nan"), "text": "Größe \ud800",
        "bytes": b"\0\xff", "list": [1, (2, {3: "four"})], "set": {5, 6}, "path": Path("a/b"),
        "array": np.arange(3, dtype=np.int16), "number": np.float32(0.1), "dtype": torch.bfloat16,
    }  # fmt: skip
    there = checkpoint.unpack(checkpoint.pack(state))
    assert there.pop("nan") != state["nan"]
    assert there.pop("array").tolist() == [0, 1, 2]
    assert there == {name: value for name, value in state.items() if name not in ("nan", "array")}


def test_optimizers_state_comes_back() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    there = checkpoint.unpack(checkpoint.pack({"optimizer": optimizer.state_dict()}))
    assert there["optimizer"]["state"][0]["step"].item() == 1
    assert checkpoint.digest(there["optimizer"]) == checkpoint.digest(optimizer.state_dict())


def test_what_cannot_be_pickled_is_named() -> None:
    state = {"model": {}, "extras": {"sched": {"steps": 3, "rule": lambda epoch: epoch}}}
    with pytest.raises(ConfigError, match=r"^state\['extras'\]\['sched'\]\['rule'\] cannot be pickled"):
        checkpoint.pack(state)


def test_a_class_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("vanishing")
    exec("class Best:\n    pass", vars(module))
    monkeypatch.setitem(sys.modules, "vanishing", module)
    data = checkpoint.pack({"best": module.Best()})
    monkeypatch.delitem(sys.modules, "vanishing")
    with pytest.raises(ConfigError, match=r"state holds what this script does not define: .*vanishing"):
        checkpoint.unpack(data)


# Damage.


@pytest.fixture(scope="module")
def packed() -> bytes:
    return checkpoint.pack({"format": 1, "model": {"weight": torch.arange(100.0)}, "epoch": 3})


@pytest.mark.parametrize("at", [0, 7, 8, 11, 12, 19, 20, 51, 52, 53, 700, -22, -1])
def test_a_flipped_bit_is_refused(packed: bytes, at: int, tmp_path: Path) -> None:
    damaged = bytearray(packed)
    damaged[at] ^= 1
    (tmp_path / "it.elche").write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"it\.elche (is no checkpoint|has format|is damaged)"):
        checkpoint.read(tmp_path / "it.elche")


@pytest.mark.parametrize("length", [0, 1, 7, 8, 20, 51, 52, 53, 700, -1])
def test_a_cut_file_is_refused(packed: bytes, length: int, tmp_path: Path) -> None:
    (tmp_path / "it.elche").write_bytes(packed[:length])
    with pytest.raises(ConfigError, match=r"it\.elche (is no checkpoint|is damaged)"):
        checkpoint.read(tmp_path / "it.elche")


def test_what_is_wrong_is_told(packed: bytes, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this state is no checkpoint of elche"):
        checkpoint.unpack(b"PK\3\4" + bytes(100))
    with pytest.raises(ConfigError, match="has format 2, this version of elche reads format 1"):
        checkpoint.unpack(packed[:8] + b"\2\0\0\0" + packed[12:])
    with pytest.raises(ConfigError, match=f"is damaged: {len(packed) + 1} bytes instead of {len(packed)}"):
        checkpoint.unpack(packed + b"\0")
    with pytest.raises(ConfigError, match=r"there is no checkpoint .*nowhere"):
        checkpoint.read(tmp_path / "nowhere")


def test_the_payload_is_pytorchs_own(packed: bytes, tmp_path: Path) -> None:
    (tmp_path / "it.pt").write_bytes(packed[HEADER_BYTES:])
    assert torch.load(tmp_path / "it.pt", weights_only=False)["epoch"] == 3


# Files.


def put(directory: Path, *windows: int) -> None:
    for window in windows:
        checkpoint.write(directory / checkpoint.file_name(window), checkpoint.pack({"window": window}))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_names_sort_by_window(tmp_path: Path) -> None:
    assert checkpoint.file_name(123) == "window-000123.elche"
    put(tmp_path, 7, 1_000_000, 999_999)
    assert checkpoint.newest(tmp_path) == tmp_path / "window-1000000.elche"
    assert checkpoint.read(tmp_path / "window-1000000.elche") == {"window": 1_000_000}


def test_newest_of_nothing(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) is None
    assert checkpoint.newest(tmp_path / "not there") is None


def test_newest_passes_over_damaged_files_and_those_aside(tmp_path: Path, packed: bytes) -> None:
    put(tmp_path, 3, 4)
    (tmp_path / "window-000005.elche").write_bytes(packed[:-10])
    (tmp_path / "window-000006.elche").write_bytes(packed[:-10] + b"0123456789")
    (tmp_path / ".window-000007.elche.0123456789abcdef.part").write_bytes(packed)
    (tmp_path / "window-000008.elche.bak").write_bytes(packed)
    (tmp_path / "best.elche").write_bytes(packed)
    with pytest.warns(RuntimeWarning, match="ignored: ") as warned:
        assert checkpoint.newest(tmp_path) == tmp_path / "window-000004.elche"
    assert [str(one.message).split("/")[-1][:29] for one in warned] == [
        "window-000006.elche is damage",
        "window-000005.elche is damage",
    ]


def test_the_file_is_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        put(tmp_path / "made" / "too", 1)
    finally:
        os.umask(before)
    path = tmp_path / "made" / "too" / "window-000001.elche"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_failed_write_leaves_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 1)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write(tmp_path / "window-000001.elche", b"new")
    assert names(tmp_path) == ["window-000001.elche"]
    assert checkpoint.read(tmp_path / "window-000001.elche") == {"window": 1}


def test_prune(tmp_path: Path, packed: bytes) -> None:
    put(tmp_path, 1, 2, 3, 5)
    (tmp_path / "window-000004.elche").write_bytes(packed[:-1])  # cut short: does not count
    (tmp_path / "model.pt").write_bytes(b"the user's")
    checkpoint.prune(tmp_path, keep=2)
    assert names(tmp_path) == ["model.pt", *(f"window-00000{window}.elche" for window in (3, 4, 5))]
    with pytest.raises(ConfigError, match="keep must be at least 1, got 0"):
        checkpoint.prune(tmp_path, keep=0)


def test_prune_takes_what_a_killed_writer_left(tmp_path: Path) -> None:
    put(tmp_path, 1)
    now = (tmp_path / "window-000001.elche").stat().st_mtime
    for age, name in ((10, "under way"), (4000, "left")):
        path = tmp_path / f".window-000002.elche.{name}.part"
        path.write_bytes(b"half")
        os.utime(path, (now - age, now - age))
    checkpoint.prune(tmp_path, keep=1)
    assert names(tmp_path) == [".window-000002.elche.under way.part", "window-000001.elche"]


WRITER = """
import sys
from pathlib import Path
import torch
from elche.elastic import checkpoint
mine = torch.full((50_000,), int(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
for turn in range(30):
    path = Path(sys.argv[1]) / checkpoint.file_name(turn % 3)
    checkpoint.write(path, checkpoint.pack({"mine": mine}))
    checkpoint.prune(path.parent, keep=2)
"""


def test_two_processes_write_the_same_directory(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), number],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in "12"
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.close()
    num_read, running, deadline = 0, True, time.monotonic() + 60
    while running:
        assert time.monotonic() < deadline
        running = any(writer.poll() is None for writer in writers)
        for path in tmp_path.glob("window-*.elche"):
            try:
                mine = checkpoint.unpack(path.read_bytes())["mine"]
            except FileNotFoundError:
                continue  # pruned between the two
            assert mine.unique().tolist() in ([1], [2])
            num_read += 1
    for writer in writers:
        writer.stdout.close()
    assert [writer.returncode for writer in writers] == [0, 0]
    assert num_read
    assert not list(tmp_path.glob(".*"))
