"""What the kernels compile to, without a GPU: 16 bytes per access inside, no spills, no recompiles."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from specialisations import specialisations
from targets import NVIDIA, TARGETS, accesses, compile_for, compiling, resources

from elche.kernels import chunk, lerp

SPECIALISATIONS = specialisations()
EVERY = ("sm_90", "gfx942")  # in the short tests these have every specialisation, the others the core ones
COMPILED = [
    pytest.param(target, name, marks=() if target in EVERY or one.core else pytest.mark.soak)
    for target in TARGETS
    for name, one in SPECIALISATIONS.items()
]
MOST_REGISTERS = 80  # six programs of 128 threads share the 65,536 of an SM: 48 KiB and more in flight
ALIGNMENT_ASKED = re.compile(r"and\.b64\s+%rd\d+, %rd\d+, 15;")  # address % 16, before any wide access to it


@pytest.mark.parametrize(("target", "name"), COMPILED)
def test_interior_accesses_are_16_bytes_wide_and_what_the_docstring_counts(target, name, record_property):
    expected = SPECIALISATIONS[name]
    kernel = compile_for(target, expected.launch)
    per_thread = chunk.CHUNK // (kernel.metadata.num_warps * TARGETS[target].warp_size)
    reads, writes = accesses(kernel, "ld")[0], accesses(kernel, "st")[0]
    if target in NVIDIA:  # what is not masked is the interior and what comes once per chunk
        interior = Counter({16: expected.reads * per_thread // 16})
        assert reads == interior + Counter(expected.scalars) + twice(name)
        assert writes == +Counter({16: expected.writes * per_thread // 16})
        assert "fma." not in kernel.asm["ptx"]
    else:
        narrow_reads, narrow_writes = narrow_on_amd(name)
        assert writes[16] * 16 == (expected.writes - narrow_writes) * per_thread
        # AMD's compiler writes the loop over the shards out more than once.
        times = reads[16] * 16 / ((expected.reads - narrow_reads) * per_thread)
        assert times in ((1, 3) if "weighted_sum" in name else (1,))
    registers, own_bytes = resources(kernel)
    record_property("registers", registers)
    assert own_bytes == 0
    assert 0 < registers <= MOST_REGISTERS


def narrow_on_amd(name):
    """Bytes read and written per element in less than 16: half precision out of or into a float64 bucket.

    There are 512 threads there, with four elements each; elche makes float64 buckets for float64 alone.
    """
    if name.startswith("scale_accumulate float64"):
        return 2 + 2, 0
    return (0, 2 + 2) if name == "unpack float64" else (0, 0)


def twice(name):
    """The loop over the shards, and with it its weight, is there for the interior and for the tail."""
    return Counter({4: 1}) if "weighted_sum" in name else Counter()


@pytest.mark.parametrize("name", SPECIALISATIONS)
def test_weights_counts_and_sizes_do_not_compile_again(name):
    launch = SPECIALISATIONS[name].launch
    with compiling("sm_90") as compiled:
        launch(weight=0.3, numels=(5001, 3))
        for weight in (0.0, 1.0, 16.0, torch.tensor(0.5), torch.ones(2)[1]):
            launch(weight=weight, numels=(5001, 3))
        for numels in [(1,), (16,), (17, 1, 4096), (16,) * 15, (16,) * 16, (2048,) * 321]:
            launch(weight=0.3, numels=numels)
    assert len(compiled) == 12
    assert {id(kernel) for kernel in compiled} == {id(compiled[0])}


def test_a_flat_tensor_that_starts_elsewhere_is_another_kernel_without_wide_accesses():
    x_n, y_n = torch.zeros(5001), torch.zeros(5001)
    with compiling("sm_90") as compiled:
        lerp.launch(x_n[1:], y_n[1:], 0.5)
        lerp.launch(x_n[:5000], y_n[:5000], 0.5)
    assert compiled[0] is not compiled[1]


@pytest.mark.parametrize("target", NVIDIA)
def test_an_address_from_the_table_is_asked_for_its_alignment(target):
    name = "scale_accumulate float32 += flagged"
    assert ALIGNMENT_ASKED.search(compile_for(target, SPECIALISATIONS[name].launch).asm["ptx"])


@pytest.mark.parametrize("target", [name for name in NVIDIA if name != "sm_75"])
def test_half_precision_is_rounded_by_the_hardware_to_nearest_even(target):
    """Turing has no bfloat16: there Triton rounds by integers."""
    text = compile_for(target, SPECIALISATIONS["cast_scale to bfloat16"].launch).asm["ptx"]
    assert "cvt.rn.bf16x2.f32" in text
    assert "cvt.rz" not in text


def test_every_kernel_of_the_table_is_compiled_here():
    """A kernel that is launched somewhere in kernels/ and missing above would go unproven."""
    names = {name.partition(" ")[0] for name in SPECIALISATIONS}
    assert names == {
        *("scale_accumulate", "unpack", "flag_nonfinite", "cast_scale"),
        *("weighted_sum", "drift", "outer_step", "lerp"),
    }
    assert len(SPECIALISATIONS) == 28


def test_a_slot_s_place_past_2_to_the_31_is_of_64_bits():
    """Elements are counted in 16-byte groups of 64 bits, so no product wraps round."""
    text = compile_for("sm_90", SPECIALISATIONS["scale_accumulate float32 += flagged"].launch).asm["ttir"]
    assert re.search(r"arith\.muli %\S+, %\S+ : i64", text)
    assert not re.search(r"tt\.addptr %bucket_ptr, %\S+ : !tt\.ptr<f32>, i32", text)
