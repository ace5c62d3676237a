"""The README's lines of use, as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.data import TensorDataset

import elche

README = Path(__file__).parents[2] / "README.md"


def test_the_lines_of_use_train():
    lines = re.search(r"```python\n(.*?)```", README.read_text(), re.S).group(1)
    evaluated = []
    x = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 0).long()
    given = {
        "torch": torch,
        "Net": lambda: torch.nn.Linear(8, 2),
        "dataset": TensorDataset(x, y),
        "F": F,
        "evaluate": lambda model: evaluated.append(F.cross_entropy(model(x), y).item()),
    }
    exec(lines, given)
    assert len(evaluated) == 10
    assert evaluated[-1] < evaluated[0]
    assert given["optimizer"].num_updates == 10 * 3  # 5 batches of an epoch, 2 to a window
    assert not elche.is_initialized()
