"""Which GPU is the slowest by its data sheet: the anchor rank before anything is measured.

The driver is asked through NVML, which creates no CUDA context and so takes no memory from the GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

NVML_LIBRARY = "libnvidia-ml.so.1"
GIB = 2**30


class NvmlError(Exception):
    """An NVML call failed; the text is the function and its code."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def probe(load: Callable[[str], Any] = ctypes.CDLL) -> list[dict[str, int]] | None:
    """Ask the driver for its GPUs.

    Args:
        load: opens a shared library by its name and raises OSError when there is none.

    Returns:
        One dict per GPU with `index`, `sm_major`, `sm_minor` and `vram_bytes`, in the driver's order;
        None when there is no driver, or it does not answer.
    """
    try:
        nvml = load(NVML_LIBRARY)
        _call(nvml, "nvmlInit_v2")
    except (OSError, NvmlError):
        return None
    try:
        count = ctypes.c_uint()
        _call(nvml, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [_describe(nvml, index) for index in range(count.value)]
    except NvmlError:
        return None
    finally:
        nvml.nvmlShutdown()


def _describe(nvml: Any, index: int) -> dict[str, int]:
    device = ctypes.c_void_p()
    major, minor, memory = ctypes.c_int(), ctypes.c_int(), _Memory()
    _call(nvml, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
    _call(nvml, "nvmlDeviceGetCudaComputeCapability", device, ctypes.byref(major), ctypes.byref(minor))
    _call(nvml, "nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
    return {"index": index, "sm_major": major.value, "sm_minor": minor.value, "vram_bytes": memory.total}


def _call(nvml: Any, name: str, *args: Any) -> None:
    function = getattr(nvml, name, None)  # drivers before 2014 lack some
    code = function(*args) if function is not None else "no such function"
    if code != 0:
        raise NvmlError(f"{name} returned {code}")


def spec_score(gpu: Mapping[str, int]) -> float:
    """Return sm_major * 100 + sm_minor * 10 + VRAM in GiB; more is taken for faster."""
    return gpu["sm_major"] * 100.0 + gpu["sm_minor"] * 10.0 + gpu["vram_bytes"] / GIB


def slowest_slot(device_indices: Sequence[int], gpus: Sequence[Mapping[str, int]] | None) -> int | None:
    """Pick the slot whose GPU has the lowest spec score, the lowest slot on a tie.

    Args:
        device_indices: per slot the index of its GPU.
        gpus: what `probe` returned.

    Returns:
        The slot, or None when a GPU is not among `gpus`.
    """
    by_index = {gpu["index"]: gpu for gpu in gpus or ()}
    if not device_indices or any(index not in by_index for index in device_indices):
        return None
    scores = [spec_score(by_index[index]) for index in device_indices]
    return scores.index(min(scores))
