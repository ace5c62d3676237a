"""What these tests train."""

from __future__ import annotations

MLP = {"model": "Mlp", "optimizer": "adamw", "samples": 240, "cadence": {"anchor": 2}}
LONG = {"samples": 1200, "epochs": 10000}  # several heart beats
NORM = {"model": "ConvNet", "optimizer": "sgd", "samples": 240, "cadence": {"anchor": 2}}
