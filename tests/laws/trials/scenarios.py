"""What is trained: models x optimizers x cadences, each with a reason to go wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from elche import Cadence
from trials.models import RARE_IDS, count_tokens

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One training.

    Attributes:
        samples: in the dataset; 0: as many as ranks.
        ms: emulated ms per batch, by rank, so that plans are known; None: the real clock.
        counts: batches by window (in turn) and rank, instead of what the controller says.
        schedule: of the learning rate: None, "epoch" (halves) or "update" (lr / (1 + updates)).
        warm: rank 0 alone brings an optimizer state along.
        poisoned: id of a sample whose gradient is not finite.
        log: file name of the event log; with `{rank}` every rank writes one.
        perturbed: "parameter" or "momentum", of which rank 1 changes its own after update 5.
        repeated: train twice, for the law that needs it.
    """

    model: str = "Mlp"
    optimizer: str = "sgd"
    cadence: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    samples: int = 53
    batch_size: int = 3
    epochs: int = 2
    shuffle: bool = True
    drop_last: bool = False
    num_workers: int = 0
    ms: tuple[float, ...] | None = (40.0, 20.0, 10.0, 40.0)
    counts: tuple[tuple[int, ...], ...] | None = None
    schedule: str | None = None
    warm: bool = False
    poisoned: int | None = None
    log: str = "log.jsonl"
    perturbed: str | None = None
    repeated: bool = False

    @property
    def tolerance(self) -> float:
        """Law 1's, relative."""
        return 1e-12 if self.dtype == torch.float64 else 1e-6

    def make_cadence(self) -> Cadence:
        return Cadence(**{"anchor": 1, **self.cadence})

    def make_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """The plain one: two groups, the second at a third of the learning rate and without decay."""
        make, settings = OPTIMIZERS[self.optimizer]
        first, *rest = model.parameters()
        second = {"params": rest, "lr": settings["lr"] / 3, "weight_decay": 0.0}
        groups = [{"params": [first]}, second] if self.warm else model.parameters()
        return make(groups, **settings)

    def expected_lr(self, epoch: int, updates: int, samples: int) -> float:
        """The first group's learning rate in the update after `updates`, on so many samples."""
        lr = OPTIMIZERS[self.optimizer][1]["lr"]
        ratio = samples / self.cadence.get("lr_reference_samples", 1)
        lr *= {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[self.cadence.get("lr_scaling", "none")]
        return lr * {None: 1.0, "epoch": 0.5**epoch, "update": 1 / (1 + updates)}[self.schedule]


TOKENS = {"weight": count_tokens}
FLOAT64 = torch.float64
UNEVEN = ((4, 2, 1, 3), (1, 3, 2, 1))
IDLE = ((2, 0, 1, 0), (0, 1, 2, 3), (1, 3, 0, 0))

SCENARIOS = {
    "mlp_4_2_1": Scenario(counts=((4, 2, 1, 1),), ms=(10.0, 20.0, 40.0, 40.0), repeated=True),
    "mlp_measured": Scenario(optimizer="adamw", cadence={"anchor": 2}, dtype=FLOAT64, repeated=True),
    "mlp_speed_ratio": Scenario(cadence={"speed_ratio": (0, 3.0)}, ms=None),
    "cnn_sgd": Scenario(model="ConvNet", counts=UNEVEN, warm=True, repeated=True),
    "cnn_adamw": Scenario(
        model="ConvNet", optimizer="adamw", dtype=FLOAT64, batch_size=4, log="{rank}.jsonl"
    ),
    "cnn_idle": Scenario(model="ConvNet", dtype=FLOAT64, counts=IDLE),
    "embedded": Scenario(model="Embedded", batch_size=5, counts=UNEVEN),
    "embedded_adamw": Scenario(model="Embedded", optimizer="adamw", dtype=FLOAT64, warm=True, repeated=True),
    "tied_tokens": Scenario(model="Tied", cadence=TOKENS, counts=UNEVEN),
    "tied_adamw": Scenario(model="Tied", optimizer="adamw", cadence=TOKENS, dtype=FLOAT64, repeated=True),
    "branch_sgd": Scenario(model="Branching", repeated=True),
    "branch_adamw": Scenario(model="Branching", optimizer="adamw", dtype=FLOAT64, counts=IDLE),
    "sync": Scenario(cadence={"policy": "sync", "anchor": None}, batch_size=10, epochs=3),
    "idle": Scenario(counts=IDLE, dtype=FLOAT64, warm=True),
    "one_batch": Scenario(samples=5, batch_size=8, epochs=3),
    "a_sample_per_rank": Scenario(samples=0, batch_size=1, epochs=3, dtype=FLOAT64),
    "drop_last": Scenario(batch_size=8, drop_last=True, epochs=3),
    "clipped": Scenario(cadence={"max_grad_norm": 0.3}, counts=UNEVEN),
    "clipped_branch": Scenario(model="Branching", cadence={"max_grad_norm": 0.3}, dtype=FLOAT64),
    "lr_linear": Scenario(cadence={"lr_scaling": "linear", "lr_reference_samples": 12}, schedule="epoch"),
    "lr_sqrt": Scenario(
        cadence={"lr_scaling": "sqrt", "lr_reference_samples": 12}, schedule="epoch", dtype=FLOAT64, warm=True
    ),
    "lr_per_update": Scenario(schedule="update", dtype=FLOAT64),
    "growing": Scenario(
        cadence={"max_anchor": 6, "overhead_target": 0.3}, ms=(0.4, 0.2, 0.1, 0.4), repeated=True
    ),
    "poisoned": Scenario(poisoned=17, counts=UNEVEN, epochs=3),
    "poisoned_branch": Scenario(model="Branching", poisoned=RARE_IDS[1], counts=IDLE, dtype=FLOAT64),
    "in_order": Scenario(shuffle=False, counts=UNEVEN, batch_size=1, samples=31, log="{rank}.jsonl"),
    "workers": Scenario(num_workers=2, counts=UNEVEN, epochs=3, repeated=True),
}
PERTURBED = {
    f"perturbed_{what}": Scenario(perturbed=what, cadence={"resync_every": 4}, counts=((1, 1, 1, 1),))
    for what in ("parameter", "momentum")
}
