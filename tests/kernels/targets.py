"""What the kernels compile to on GPUs that are not here: launchers get the CPU's tensors and only compile.

Triton is told of a device of each kind and asked to warm up instead of launching, so signatures, hints and
options are those of a real launch.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

CAPABILITIES = (75, 80, 86, 89, 90, 100, 120)
TARGETS = {
    **{f"sm_{capability}": GPUTarget("cuda", capability, 32) for capability in CAPABILITIES},
    **{name: GPUTarget("hip", name, 64) for name in ("gfx90a", "gfx942")},
}
NVIDIA = [name for name in TARGETS if name.startswith("sm_")]
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


class Absent:
    """A driver of one GPU that is not here; its place among the targets is its device number."""

    def __init__(self, name):
        self.device, self.target = list(TARGETS).index(name), TARGETS[name]

    def get_current_device(self):
        return self.device

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return self.target


@contextmanager
def compiling(name):
    """Within, launches compile for the target `name`; gives the list of what each of them compiled to."""
    compiled = []
    run = JITFunction.run

    def warm_up(self, *args, grid, warmup, **kwargs):
        compiled.append(run(self, *args, grid=grid, warmup=True, **kwargs))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_active", Absent(name))
        patch.setattr(JITFunction, "run", warm_up)
        yield compiled


def compile_for(name, launch):
    """The one kernel that `launch()` launches, compiled for the target `name`."""
    with compiling(name) as compiled:
        launch()
    (kernel,) = compiled
    return kernel


def accesses(kernel, kind):
    """Count accesses to global memory by bytes, whole and masked: ({16: 8, 4: 1}, {2: 32}) for ld or st."""
    if "ptx" in kernel.asm:
        return ptx_accesses(kernel.asm["ptx"], kind)
    return amd_accesses(kernel.asm["amdgcn"], kind)


def ptx_accesses(text, kind):
    whole, masked = Counter(), Counter()
    for predicate, vector, bits in re.findall(rf"(@!?%p\d+ )?\t?{kind}\.global\.(?:v(\d)\.)?b(\d+)", text):
        (masked if predicate else whole)[int(vector or 1) * int(bits) // 8] += 1
    return whole, masked


def amd_accesses(text, kind):
    """AMD masks by offsets out of range or by branches; only the widths tell, so none is masked."""
    sizes = {"ubyte": 1, "byte": 1, "ushort": 2, "short": 2, "dword": 4}
    verb = {"ld": "load", "st": "store"}[kind]
    found = re.findall(rf"\b(?:global|flat|buffer)_{verb}_(ubyte|byte|ushort|short|dword)(?:x(\d))?\b", text)
    return Counter(sizes[size] * int(times or 1) for size, times in found), Counter()


def resources(kernel):
    """Registers a thread, and the bytes of its own memory (spills, stack) that it needs besides."""
    if "ptx" in kernel.asm:
        return nvidia_resources(kernel.asm["cubin"])
    said = dict(re.findall(r"\.(\w+): +(\d+)", kernel.asm["amdgcn"]))
    own = sum(
        int(said[key]) for key in ("private_segment_fixed_size", "vgpr_spill_count", "sgpr_spill_count")
    )
    return int(said["vgpr_count"]), own


def nvidia_resources(cubin):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:  # the tool, which triton brings, reads no pipe
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, timeout=60, check=True
        )
    said = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", done.stdout)}
    return said["REG"], said["STACK"] + said["LOCAL"]
