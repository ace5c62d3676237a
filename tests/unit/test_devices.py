"""The device probe against a driver made of Python, and against the machine's own where there is one."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from elche.policy import devices

GIB = 2**30


class Driver:
    """NVML's five calls for two GPUs; `failing` returns an error, `missing` does not exist."""

    gpus = ((9, 0, 141 * GIB), (6, 1, 6 * GIB))

    def __init__(self, failing: str = "", missing: str = "") -> None:
        self.failing, self.missing = failing, missing
        self.opened = 0

    def __getattr__(self, name: str) -> Any:
        if name == self.missing or not name.startswith("nvml"):
            raise AttributeError(name)
        return lambda *args: 999 if name == self.failing else getattr(self, name.removeprefix("nvml"))(*args)

    def Init_v2(self) -> int:
        self.opened += 1
        return 0

    def Shutdown(self) -> int:
        self.opened -= 1
        return 0

    def DeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return 0

    def DeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, device: Any) -> int:
        device._obj.value = 1000 + index.value
        return 0

    def DeviceGetCudaComputeCapability(self, device: ctypes.c_void_p, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = self.gpus[(device.value or 0) - 1000][:2]
        return 0

    def DeviceGetMemoryInfo(self, device: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.total = self.gpus[(device.value or 0) - 1000][2]
        return 0


def test_the_probe_lists_what_the_driver_knows_and_closes_it() -> None:
    driver = Driver()
    assert devices.probe(load=lambda _: driver) == [
        {"index": 0, "sm_major": 9, "sm_minor": 0, "vram_bytes": 141 * GIB},
        {"index": 1, "sm_major": 6, "sm_minor": 1, "vram_bytes": 6 * GIB},
    ]
    assert driver.opened == 0


@pytest.mark.parametrize(
    "name",
    [
        "nvmlInit_v2",
        "nvmlDeviceGetCount_v2",
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetMemoryInfo",
    ],
)
@pytest.mark.parametrize("how", ["failing", "missing"])
def test_a_driver_that_does_not_answer_is_no_driver(name: str, how: str) -> None:
    driver = Driver(**{how: name})
    assert devices.probe(load=lambda _: driver) is None
    assert driver.opened == 0


def test_no_library_is_no_driver() -> None:
    def load(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    assert devices.probe(load=load) is None


def test_the_machines_own_driver_names_its_gpus() -> None:
    gpus = devices.probe()
    if not gpus:
        pytest.skip("no NVIDIA driver, or no GPU, on this machine")
    assert [gpu["index"] for gpu in gpus] == list(range(len(gpus)))
    assert all(gpu["sm_major"] >= 2 and gpu["vram_bytes"] > 0 for gpu in gpus)


def gpu(index: int, major: int, minor: int, gib: float) -> dict[str, int]:
    return {"index": index, "sm_major": major, "sm_minor": minor, "vram_bytes": int(gib * GIB)}


def test_the_score_weighs_generation_over_memory() -> None:
    assert devices.spec_score(gpu(0, 8, 6, 24.5)) == 884.5
    assert devices.spec_score(gpu(0, 12, 0, 0.0)) == 1200.0


def test_the_slowest_slot_has_the_lowest_score() -> None:
    gpus = [gpu(0, 9, 0, 80), gpu(1, 8, 6, 24), gpu(2, 8, 6, 12), gpu(3, 8, 6, 12)]
    assert devices.slowest_slot([0, 1, 2], gpus) == 2
    assert devices.slowest_slot([3, 2, 1], gpus) == 0
    assert devices.slowest_slot([0, 4], gpus) is None
    assert devices.slowest_slot([0], None) is None
    assert devices.slowest_slot([], gpus) is None
