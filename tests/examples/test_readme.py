"""The README's lines of use, as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.data import TensorDataset

import elche

README = Path(__file__).parents[2] / "README.md"
USE, GO_ON = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)


@pytest.fixture
def given():
    """What the lines take for granted; `evaluated` has the model's losses."""
    x = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 0).long()
    evaluated = []
    return {
        "torch": torch,
        "Net": lambda: torch.nn.Linear(8, 2),
        "dataset": TensorDataset(x, y),
        "F": F,
        "Path": Path,
        "evaluate": lambda model: evaluated.append(F.cross_entropy(model(x), y).item()),
        "evaluated": evaluated,
    }


def test_the_lines_of_use_train(given):
    exec(USE, given)
    evaluated = given["evaluated"]
    assert len(evaluated) == 10
    assert evaluated[-1] < evaluated[0]
    assert given["optimizer"].num_updates == 10 * 3  # 5 batches of an epoch, 2 to a window
    assert not elche.is_initialized()


def test_the_lines_of_going_on_do_so(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    before, loop = USE.split("for epoch in state.epochs(10):")
    training = before + GO_ON.replace("    ...\n", loop.split("\n", 1)[1].replace("elche.shutdown()", ""))
    save = 'if epoch == 3: state.save("checkpoints"); break\n'
    for epochs, also in ((4, save), (10 - 4, "")):
        given["evaluated"].clear()
        exec(f"{training}    {also}\nelche.shutdown()\n", given)
        assert len(given["evaluated"]) == epochs
    assert given["optimizer"].num_updates == 10 * 3
