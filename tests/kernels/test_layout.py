"""Slots of a bucket, and flat aliases of dense tensors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from elche import kernels
from elche.errors import ConfigError
from elche.kernels import SlotLayout, dense_1d


@pytest.mark.parametrize(
    ("dtype", "offsets", "total"),
    [(torch.float32, (0, 0, 4, 8, 16), 36), (torch.float64, (0, 0, 2, 6, 12), 30)],
)
def test_every_slot_starts_on_16_bytes(dtype, offsets, total):
    layout = SlotLayout.of([0, 1, 3, 5, 17], dtype)
    assert (layout.numels, layout.offsets, layout.total) == ((0, 1, 3, 5, 17), offsets, total)


def test_a_layout_of_nothing():
    layout = SlotLayout.of([], torch.float32)
    assert (layout.total, layout.views(torch.zeros(0))) == (0, [])


def test_flat_views_leave_the_padding_out():
    layout = SlotLayout.of([3, 0, 5], torch.float32)
    views = layout.views(torch.arange(12.0))
    assert [view.tolist() for view in views] == [[0, 1, 2], [], [4, 5, 6, 7, 8]]


def test_views_take_the_shape_and_memory_order_of_the_tensors():
    image = torch.zeros(2, 3, 2, 2).to(memory_format=torch.channels_last)
    like = [torch.zeros(()), torch.zeros(2, 3).t(), torch.zeros(2, dtype=torch.complex64), image]
    layout = SlotLayout.of([1, 6, 4, 24], torch.float32)
    padded_n = torch.arange(layout.total + 4.0)
    views = layout.views(padded_n[4:], like)
    assert views[0].tolist() == 4.0
    assert views[1].tolist() == [[8, 11], [9, 12], [10, 13]]
    assert views[2].tolist() == [[16, 17], [18, 19]]
    assert views[3].stride() == image.stride()
    assert views[3][0, 0, 0, 0] == 20
    assert (views.numels, views.contiguous) == ((1, 6, 4, 24), False)
    assert layout.views(padded_n[4:]).contiguous


def test_dense_1d_is_the_memory_in_order():
    matrix = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert dense_1d(matrix.t()).tolist() == [1, 2, 3, 4]
    assert dense_1d(matrix[1]).tolist() == [3, 4]
    assert dense_1d(torch.tensor([1 + 2j, 3 - 4j])).tolist() == [1, 2, 3, -4]
    assert dense_1d(torch.tensor(5.0)).tolist() == [5]
    assert dense_1d(torch.zeros(0, 3).t()).tolist() == []
    dense_1d(matrix.t())[0] = 7.0
    assert matrix[0, 0] == 7


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        pytest.param(torch.zeros(4, 4)[:, ::2], "not dense", id="every second column"),
        pytest.param(torch.zeros(1).expand(3), "not dense", id="expanded"),
        pytest.param(torch.zeros(4, 4)[:2, :3], "not dense", id="corner"),
        pytest.param(torch.zeros(2, dtype=torch.complex64).conj(), "lazily", id="lazy conjugate"),
        pytest.param(torch.zeros(1, dtype=torch.complex64).conj().imag, "lazily", id="lazy negative"),
    ],
)
def test_dense_1d_refuses_what_memory_does_not_hold(tensor, words):
    with pytest.raises(ConfigError, match=words):
        dense_1d(tensor)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: SlotLayout.of([1], torch.float16), "float16"),
        (lambda: SlotLayout.of([2, -1], torch.float32), "-1"),
        (lambda: SlotLayout.of([3], torch.float32).views(torch.zeros(3)), r"\(4,\).*\(3,\)"),
        (lambda: SlotLayout.of([3], torch.float32).views(torch.zeros(4, dtype=torch.float64)), "float64"),
        (lambda: SlotLayout.of([3], torch.float32).views(torch.zeros(8)[::2]), r"\(2,\)"),
        (
            lambda: SlotLayout.of([3], torch.float32).views(torch.zeros(4), [torch.zeros(2)]),
            r"\(2,\).*\(3,\)",
        ),
    ],
)
def test_bad_input_is_refused_by_name(act, words):
    with pytest.raises(ConfigError, match=words):
        act()


def test_importing_the_kernels_and_the_cpu_path_leave_triton_alone():
    program = (
        "import sys, torch; from elche.kernels import *; layout = SlotLayout.of([2], torch.float32);"
        "x = [torch.ones(2)]; b = torch.zeros(4); scale_accumulate_(b, layout, x, 2.0, accumulate=True);"
        "unpack_(x, b, layout, 1.0); flag_nonfinite_(torch.zeros(1), x);"
        "print('triton' in sys.modules, b.tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "False [2.0, 2.0, 0.0, 0.0]"


def test_no_file_of_the_kernels_bears_a_function_s_name():
    """Importing `elche.kernels.drift` would put the module in the place of `elche.kernels.drift()`."""
    files = {path.stem for path in Path(kernels.__file__).parent.glob("*.py")}
    assert "drift_norms" in files
    assert files.isdisjoint(kernels.__all__)
