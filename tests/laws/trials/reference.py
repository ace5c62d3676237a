"""One process, plain PyTorch, the samples of a window: what every window must equal."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trials.models import Samples, loss_of
from trials.scenarios import Scenario

Batches = Sequence[Sequence[Sequence[int]]]  # by slot: the ids of each batch


class Reference:
    """A plain model and a plain optimizer."""

    def __init__(self, scenario: Scenario, model: nn.Module, data: Samples) -> None:
        self.scenario, self.model, self.data = scenario, model, data
        self.optimizer = scenario.make_optimizer(model)

    def window(self, batches: Batches, lr: float) -> bool:
        """Take the gradient of the window's mean loss and step; return whether there was anything to do."""
        if not any(batches):  # all who had some were lost
            return False
        self.optimizer.zero_grad()
        if self.scenario.model == "ConvNet":
            self._gradient_by_batch(batches)
        else:
            kept = [batch for slot in batches for batch in slot if self.scenario.poisoned not in batch]
            if not kept:
                return False
            loss_of(self.model, self.data.batch([i for batch in kept for i in batch])).backward()
        max_norm = self.scenario.make_cadence().max_grad_norm
        if max_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
        self._set_lr(lr)
        self.optimizer.step()
        return True

    def _gradient_by_batch(self, batches: Batches) -> None:
        """BatchNorm sees one batch at a time; its statistics are the mean over the slots that moved."""
        num_samples = sum(len(batch) for slot in batches for batch in slot)
        before = [buffer.clone() for buffer in self.model.buffers()]
        after: list[list[Tensor]] = []
        for slot in filter(len, batches):
            for buffer, value in zip(self.model.buffers(), before, strict=True):
                buffer.copy_(value)
            for batch in slot:
                (loss_of(self.model, self.data.batch(batch)) * (len(batch) / num_samples)).backward()
            after.append([buffer.clone() for buffer in self.model.buffers()])
        for buffer, *of_slots in zip(self.model.buffers(), *after, strict=True):
            buffer.copy_(torch.stack(of_slots).mean(0) if buffer.is_floating_point() else of_slots[0])

    def _set_lr(self, lr: float) -> None:
        first = self.optimizer.param_groups[0]["lr"]
        for group in self.optimizer.param_groups:
            group["lr"] *= lr / first

    def load(self, snapshot: Any) -> None:
        """Continue from a snapshot, which PyTorch would otherwise step in place."""
        self.model.load_state_dict(snapshot.model)
        self.optimizer.load_state_dict(copy.deepcopy(snapshot.optimizer))


def distance(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """The largest difference of a tensor, relative to the norm of all together; None is not zero."""
    assert found.keys() == expected.keys()
    assert {k for k, v in found.items() if v is None} == {k for k, v in expected.items() if v is None}
    pairs = [(v.double(), expected[k].double()) for k, v in found.items() if v is not None]
    assert all(torch.isfinite(value).all() for pair in pairs for value in pair)
    norm = sum(float(wanted.norm()) ** 2 for _, wanted in pairs) ** 0.5
    worst = max((float((value - wanted).norm()) for value, wanted in pairs), default=0.0)
    return worst / norm if norm else worst


def state_tensors(optimizer_state: dict[str, Any]) -> dict[str, Any]:
    """The tensors of an optimizer's state_dict, by parameter and name."""
    state = optimizer_state["state"]
    return {f"{p}.{k}": v for p in state for k, v in state[p].items() if isinstance(v, Tensor)}
