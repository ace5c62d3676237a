"""A training state as bytes, as a file, and as a hash.

A checkpoint is a short header, with the length and SHA-256 of what follows, and what `torch.save` writes. It
is written aside and renamed: a file with a checkpoint's name is whole, or was damaged later, which the header
tells.

States hold plain Python values (a scheduler's, a script's), which PyTorch's `weights_only` refuses: as with
every pickle, reading one runs what is in it. Read only files you trust.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import secrets
import struct
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from elche.elastic.digest import digest
from elche.errors import ConfigError

__all__ = ["digest", "file_name", "newest", "pack", "prune", "read", "unpack", "windows_of", "write"]

VERSION = 1
ABANDONED_SECONDS = 3600.0  # a file aside that nobody has written to for so long
_MAGIC = b"\x89elche\r\n"  # a transfer as text would change it
_HEADER = struct.Struct("<8sIQ32s")  # magic, version, bytes that follow, their SHA-256
_NAME = re.compile(r"window-(\d{6,})\.elche")
_READ_BYTES = 2**22


def pack(state: dict[str, Any]) -> bytes:
    """Return a state as the bytes of a checkpoint.

    Args:
        state: plain values and tensors.

    Returns:
        Header and payload, for `write` or to be sent.

    Raises:
        ConfigError: something in it cannot be pickled; the text names it.
    """
    stream = io.BytesIO(bytes(_HEADER.size))
    stream.seek(_HEADER.size)
    try:
        torch.save(state, stream, pickle_protocol=4)
    except Exception as error:  # whatever the __reduce__ of somebody's class raises
        raise ConfigError(f"{_unpicklable(state) or 'the state'} cannot be pickled: {error}") from error
    with stream.getbuffer() as whole:
        payload = whole[_HEADER.size :]
        header = _HEADER.pack(_MAGIC, VERSION, len(payload), hashlib.sha256(payload).digest())
        whole[: _HEADER.size] = header
        payload.release()
    return stream.getvalue()


def unpack(data: bytes, name: str = "this state") -> dict[str, Any]:
    """Return the state that `pack` made these bytes of, with its tensors on the CPU.

    Args:
        data: header and payload.
        name: what to call it in an error, such as the file's path.

    Returns:
        The state.

    Raises:
        ConfigError: the bytes are of something else or damaged, or hold a class that this process lacks.
    """
    payload = memoryview(data)[_HEADER.size :]
    expected = _expected_sha256(data[: _HEADER.size], len(data), name)
    _require_sha256(hashlib.sha256(payload).digest(), expected, name)
    file = io.BufferedReader(_Reader(payload))
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=False)
    except (AttributeError, ImportError) as error:
        raise ConfigError(f"{name} holds what this script does not define: {error}") from error
    return state


def checked_path(name: str, path: Any) -> Path:
    """Return where a checkpoint, or a directory of them, is or may be.

    Args:
        name: what to call it in an error.
        path: what the user gave.

    Returns:
        The path.

    Raises:
        ConfigError: it is none, or of something that is neither a file nor a directory.
    """
    if not isinstance(path, (str, Path)) or not str(path):
        raise ConfigError(f"{name} must be the path of a file or a directory, got {path!r}")
    found = Path(path)
    if found.exists() and not (found.is_file() or found.is_dir()):
        raise ConfigError(f"{name} must be a file or a directory, got {str(path)!r}, which is neither")
    return found


def write(path: Path, data: bytes) -> None:
    """Write a checkpoint so that `path` is, at any moment, what it was or the whole of `data`.

    Args:
        path: the file; its directory is made where it is not there.
        data: what `pack` returned.

    Raises:
        OSError: it cannot be written; the text names `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with aside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        aside.unlink(missing_ok=True)
    _sync_directory(path.parent)


def read(path: Path) -> dict[str, Any]:
    """Return the state in a checkpoint, `unpack` of its bytes.

    Args:
        path: the file.

    Returns:
        The state.

    Raises:
        ConfigError: there is no such file, or it is no whole checkpoint; the text names it.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(f"there is no checkpoint {path}") from error
    return unpack(data, str(path))


def file_name(window: int) -> str:
    """Return the name of the checkpoint after so many windows: 123 is `window-000123.elche`."""
    return f"window-{window:06d}.elche"


def windows_of(path: Path) -> int:
    """Return the windows of which a checkpoint is, by its name."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def newest(directory: Path) -> Path | None:
    """Return the whole checkpoint of most windows in a directory; warns of damaged ones it passes over.

    Args:
        directory: where they are, under names as `file_name` gives.

    Returns:
        Its path; None where there is none, or no such directory.
    """
    for path in _numbered(directory):
        try:
            _verify(path)
        except ConfigError as error:
            warnings.warn(f"ignored: {error}", RuntimeWarning, stacklevel=2)
        except FileNotFoundError:
            continue  # another process has pruned it
        else:
            return path
    return None


def prune(directory: Path, keep: int) -> None:
    """Delete what is older than the `keep` newest checkpoints, and files that a killed writer left aside.

    Args:
        directory: where they are; nothing else in it is touched.
        keep: how many to leave, at least 1; one that is cut short does not count.

    Raises:
        ConfigError: `keep` is below 1.
    """
    if keep < 1:
        raise ConfigError(f"keep must be at least 1, got {keep}")
    whole, modified = 0, 0.0
    for path in _numbered(directory):
        with suppress(FileNotFoundError):
            if whole == keep:
                path.unlink()
                continue
            modified = max(modified, path.stat().st_mtime)
            whole += _has_its_length(path)
    for path in directory.glob(".window-*.elche.*.part"):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < modified - ABANDONED_SECONDS:
                path.unlink()


def _numbered(directory: Path) -> list[Path]:
    """The checkpoints in a directory, by their names, of most windows first."""
    found = [(int(match[1]), path) for path in directory.glob("*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def _verify(path: Path) -> None:
    """Raise `ConfigError` where `path` is no whole checkpoint."""
    with path.open("rb") as file:
        expected = _expected_sha256(file.read(_HEADER.size), os.fstat(file.fileno()).st_size, str(path))
        sha256 = hashlib.sha256()
        while block := file.read(_READ_BYTES):
            sha256.update(block)
    _require_sha256(sha256.digest(), expected, str(path))


def _has_its_length(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            _expected_sha256(file.read(_HEADER.size), os.fstat(file.fileno()).st_size, str(path))
        except ConfigError:
            return False
    return True


def _expected_sha256(header: bytes, num_bytes: int, name: str) -> bytes:
    """Return what the payload's SHA-256 must be; raise `ConfigError` where header or length is wrong."""
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        raise ConfigError(f"{name} is no checkpoint of elche, or its beginning is damaged")
    _, version, payload_bytes, expected = _HEADER.unpack(header)
    if version != VERSION:
        raise ConfigError(f"{name} has format {version}, this version of elche reads format {VERSION}")
    if num_bytes != _HEADER.size + payload_bytes:
        raise ConfigError(f"{name} is damaged: {num_bytes} bytes instead of {_HEADER.size + payload_bytes}")
    return bytes(expected)


def _require_sha256(found: bytes, expected: bytes, name: str) -> None:
    if found != expected:
        raise ConfigError(f"{name} is damaged: its SHA-256 is {found.hex()} instead of {expected.hex()}")


def _sync_directory(directory: Path) -> None:
    """Make a rename outlast a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unpicklable(value: Any, name: str = "state") -> str:
    """Return the name of the innermost entry of nested dicts that cannot be pickled, "" where all can."""
    try:
        torch.save(value, io.BytesIO(), pickle_protocol=4)
    except Exception:
        entries = value.items() if isinstance(value, dict) else ()
        inner = (_unpicklable(entry, f"{name}[{key!r}]") for key, entry in entries)
        return next(filter(None, inner), name)
    return ""


class _Reader(io.RawIOBase):
    """A file over a part of some bytes: an `io.BytesIO` of it would be a copy."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, len(self._data))[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        part = self._data[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)
