"""Equal states have equal digests, in any process; one bit is enough for another."""

from __future__ import annotations

import collections
import copy
import subprocess
import sys
from argparse import Namespace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from elche.elastic.checkpoint import digest
from elche.errors import ConfigError


def state() -> dict[str, Any]:
    return {
        "model": {"weight": torch.arange(6.0).reshape(2, 3), "half": torch.ones(3, dtype=torch.bfloat16)},
        "counters": {"epoch": 3, "window": 17, "seen": {"a", "b", "c"}},
        "policy": [Namespace(x=0.5, tags={"slow", "old"}), (1, None, True, 2.5, "text", b"bytes")],
        "array": np.arange(4, dtype=np.float32),
    }


CHANGES = {
    "a bit of a tensor": lambda s: s["model"]["weight"].view(torch.int32)[1, 2].bitwise_xor_(1),
    "the sign of zero": lambda s: s["model"]["weight"][0, 0].neg_(),
    "a shape": lambda s: s["model"].update(weight=s["model"]["weight"].reshape(3, 2)),
    "a dtype of the same bits": lambda s: s["model"].update(half=s["model"]["half"].view(torch.float16)),
    "an int": lambda s: s["counters"].update(epoch=4),
    "an int to a bool": lambda s: s["counters"].update(epoch=True),
    "a name": lambda s: s["counters"].update(epochs=s["counters"].pop("epoch")),
    "a set": lambda s: s["counters"]["seen"].remove("a"),
    "an object's set": lambda s: s["policy"][0].tags.add("new"),
    "an object's number": lambda s: setattr(s["policy"][0], "x", 0.5000000000000001),
    "the order of a list": lambda s: s["policy"].reverse(),
    "an array": lambda s: s["array"].__setitem__(0, 1e-30),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_shows(change: Any) -> None:
    changed = state()
    change(changed)
    assert digest(changed) != digest(state())


def test_what_is_not_part_of_the_value_does_not_show() -> None:
    other = copy.deepcopy(state())
    other["model"]["weight"] = torch.tensor([[0.0, 3], [1, 4], [2, 5]]).T  # the same numbers, other strides
    other["model"] = collections.OrderedDict(reversed(other["model"].items()))
    other["counters"]["seen"] = {"c", "b", "a"}
    other["array"] = np.arange(8, dtype=np.float32)[:4]
    assert digest(other) == digest(state())


def test_parts_do_not_run_together() -> None:
    states: list[Any] = [
        [[1], [2]], [[1, 2], []], [[], [1, 2]], [1, 2], (1, 2), {1: 2}, {2: 1}, {1, 2}, "12", ["1", "2"],
        ["12", ""], b"12", 12, 12.0, 12 + 0j, None, False, 0, 0.0, -0.0, "", b"", [], (), {}, set(),
        torch.tensor(12), torch.tensor([12]), torch.tensor([]), torch.zeros(0, 2), np.array([12]),
        int, float, len, Decimal(12), Decimal("12.0"), torch.float32, -1, 255, -256, 2**64, 2**64 - 1,
    ]  # fmt: skip
    assert len({digest(one) for one in states}) == len(states)


def test_another_process_agrees() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_digest import digest, state; print(digest(state()).hex())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parent)],
        env={"PYTHONHASHSEED": "5"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout.strip() == digest(state()).hex()


def test_objects_in_a_circle_end() -> None:
    here: list[Any] = [1]
    here.append(here)
    there: list[Any] = [1]
    there.append(there)
    assert digest(here) == digest(there)
    assert digest(here) != digest([1, [1, [1]]])


def test_an_optimizer_and_its_copy() -> None:
    def trained(steps: int) -> dict[str, Any]:
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.AdamW([weight], amsgrad=True)
        for _ in range(steps):
            weight.grad = torch.full((3,), 0.5)
            optimizer.step()
        return optimizer.state_dict()

    assert digest(trained(2)) == digest(trained(2))
    assert digest(trained(2)) != digest(trained(3))


def test_a_tensor_without_bytes_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^state\['extras'\]\[1\] has no bytes to compare"):
        digest({"extras": [0, torch.empty(2, device="meta")]})


def test_what_has_no_value_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^state\['rows'\] has no value to compare: .*generator"):
        digest({"rows": (row for row in ())})


def test_sparse_tensors() -> None:
    here = torch.tensor([0.0, 2.0, 0.0]).to_sparse()
    twice = torch.sparse_coo_tensor([[1, 1]], [1.5, 0.5], (3,), check_invariants=True)
    assert not twice.is_coalesced()
    assert digest(here) == digest(twice)
    assert digest(here) != digest(torch.tensor([0.0, 2.0, 1.0]).to_sparse())
