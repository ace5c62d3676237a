"""The compiled kernels without a GPU: 16 bytes per access inside, scalars at the end, nothing spilled."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from elche.kernels import SlotLayout, tables
from elche.kernels.nonfinite import flag_nonfinite_kernel
from elche.kernels.scale_accumulate import scale_accumulate_kernel
from elche.kernels.unpack import unpack_kernel

TABLES = {"chunks_ptr": "*i64", "sources_ptr": "*i64"}
ALIGNED = ("bucket_ptr", *TABLES)


def ptx(kernel, pointers, **constants):
    """Compile for sm_90 as `launch_chunks` would, for a bucket and tables on 16-byte boundaries."""
    constants["CHUNK"] = tables.CHUNK
    signature = {name: pointers.get(name, "constexpr") for name in kernel.arg_names}
    aligned = {
        (at,): [["tt.divisibility", 16]] for at, name in enumerate(kernel.arg_names) if name in ALIGNED
    }
    source = ASTSource(kernel, signature, constants, aligned)
    options = {"num_warps": 4, "enable_fp_fusion": False}
    return compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


def accesses(text, kind):
    """Count unmasked and masked accesses to global memory by width, as in {"v4.b32": 8, "masked b16": 32}."""
    found = re.findall(rf"(@%p\d+ )?\t?{kind}\.global\.(\S+)", text)
    return Counter(f"masked {width}" if masked else width for masked, width in found)


# A thread has 16 elements of a chunk: in 16-byte accesses 4 of float32, 2 of each half type, 8 of float64.
BY_KIND = {"v4.b32": 4 + 2 + 2, "v2.b64": 8}
TAIL_BY_KIND = {"masked b32": 16, "masked b16": 16 + 16, "masked b64": 16}
ALIGNMENT_ASKED = re.compile(r"and\.b64\s+%rd\d+, %rd\d+, 15;")  # address % 16, before any wide access to it


@pytest.mark.parametrize("nonfinite", ["*fp32", None])
@pytest.mark.parametrize("accumulate", [False, True])
def test_scale_accumulate_into_float32(accumulate, nonfinite):
    pointers = {"bucket_ptr": "*fp32", **TABLES, "weight_ptr": "*fp32"}
    constants = {"ACCUMULATE": accumulate, "GROUP": 4}
    if nonfinite is None:
        constants["nonfinite_ptr"] = None
    else:
        pointers["nonfinite_ptr"] = nonfinite
    text = ptx(scale_accumulate_kernel, pointers, **constants)
    scalars = {"b32": 1 if nonfinite is None else 2, "b64": 6}  # weight, flag; slot, address, kind, 3 places
    bucket, tail = (4 * 4, 4 * 16) if accumulate else (0, 0)  # four kinds read the float32 bucket
    assert accesses(text, "ld") == Counter(BY_KIND) + Counter(TAIL_BY_KIND) + Counter(scalars) + Counter(
        {"v4.b32": bucket, "masked b32": tail}
    )
    zeros = 0 if accumulate else 16  # where a tensor is missing
    assert accesses(text, "st") == {"v4.b32": 4 * 4, "masked b32": 4 * 16 + zeros}
    assert ALIGNMENT_ASKED.search(text)
    assert ".local" not in text
    assert "fma" not in text


@pytest.mark.parametrize("accumulate", [False, True])
def test_scale_accumulate_into_float64(accumulate):
    pointers = {"bucket_ptr": "*fp64", **TABLES, "weight_ptr": "*fp64", "nonfinite_ptr": "*fp32"}
    text = ptx(scale_accumulate_kernel, pointers, ACCUMULATE=accumulate, GROUP=2)
    bucket = 4 * 8 if accumulate else 0
    assert {width: n for width, n in accesses(text, "ld").items() if "v" in width} == {
        "v4.b32": 4 + 2 + 2,
        "v2.b64": 8 + bucket,
    }
    assert {width: n for width, n in accesses(text, "st").items() if "v" in width} == {"v2.b64": 4 * 8}
    assert ".local" not in text
    assert "fma" not in text


@pytest.mark.parametrize(("bucket", "group", "reads"), [("*fp32", 4, "v4.b32"), ("*fp64", 2, "v2.b64")])
def test_unpack(bucket, group, reads):
    text = ptx(unpack_kernel, {"bucket_ptr": bucket, **TABLES, "scale_ptr": "*fp32"}, GROUP=group)
    wide = {width: n for width, n in accesses(text, "ld").items() if "v" in width}
    assert wide == {reads: 4 * 16 // group}
    assert accesses(text, "st") == Counter(BY_KIND) + Counter(TAIL_BY_KIND)
    assert ALIGNMENT_ASKED.search(text)
    assert ".local" not in text
    assert "cvt.rn.bf16x2.f32" in text  # to nearest even


def test_flag_nonfinite():
    text = ptx(flag_nonfinite_kernel, {"flag_ptr": "*fp32", **TABLES})
    places = {"b64": 5}  # slot, address, kind, first element, elements
    assert accesses(text, "ld") == Counter(BY_KIND) + Counter(TAIL_BY_KIND) + Counter(places)
    assert accesses(text, "st") == {"masked b32": 1}
    assert ALIGNMENT_ASKED.search(text)
    assert ".local" not in text


@pytest.mark.parametrize("kernel", [scale_accumulate_kernel, unpack_kernel, flag_nonfinite_kernel])
def test_nothing_that_changes_from_call_to_call_is_compiled_in(kernel):
    """Weights, counts and sizes come through pointers: plain numbers would be specialised on 1 and on 16."""
    changing = [param.name for param in kernel.params if not param.is_constexpr]
    assert [name for name in changing if not name.endswith("_ptr")] == []
    unhinted = [param.name for param in kernel.params if param.do_not_specialize_on_alignment]
    assert unhinted == [name for name in changing if name not in ALIGNED]


def test_chunk_rows():
    """The docstring's example: slots of 3, 0 and 5 float32 elements, 4 to a chunk."""
    layout = SlotLayout.of([3, 0, 5], torch.float32)
    assert tables.chunk_rows(layout, chunk=4).tolist() == [[0, 0, 0, 3], [2, 0, 1, 4], [2, 4, 2, 1]]
    wider = SlotLayout.of([3, 0, 5], torch.float64)
    assert tables.chunk_rows(wider, chunk=4).tolist() == [[0, 0, 0, 3], [2, 0, 2, 4], [2, 4, 4, 1]]
    assert tables.chunk_rows(SlotLayout.of([], torch.float32)).tolist() == []


def test_chunk_rows_past_two_to_the_31():
    layout = SlotLayout.of([2**31 + 5, 1], torch.float32)
    rows = tables.chunk_rows(layout, chunk=2**30)
    assert rows.tolist() == [
        [0, 0, 0, 2**30],
        [0, 2**30, 2**28, 2**30],
        [0, 2**31, 2**29, 5],
        [1, 0, 2**29 + 2, 1],
    ]
