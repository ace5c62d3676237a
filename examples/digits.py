"""What the two training scripts share: scikit-learn's digits, a small network, accuracy, arguments."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

NUM_TEST = 360  # of 1,797 images of 8 x 8 pixels


class Net(nn.Sequential):
    """Two convolutions and a linear layer: 8 x 8 pixels in, scores of ten digits out."""

    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, kernel_size=3, padding=1, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * 4 * 4, 10),
        )


def load() -> tuple[TensorDataset, TensorDataset]:
    """Return the training set and the test set, the same split on every rank and in every run."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = torch.tensor(pixels[order], dtype=torch.float32) / 16
    y = torch.tensor(labels[order])
    return TensorDataset(x[NUM_TEST:], y[NUM_TEST:]), TensorDataset(x[:NUM_TEST], y[:NUM_TEST])


@torch.no_grad()
def accuracy(model: nn.Module, test_set: TensorDataset) -> float:
    """Return the fraction of `test_set` that `model` recognises."""
    x, y = test_set.tensors
    model.eval()
    right: Tensor = model(x).argmax(dim=1) == y
    model.train()
    return right.float().mean().item()


def arguments(parser: argparse.ArgumentParser | None = None) -> argparse.Namespace:
    """Return the command line's settings; `parser` may bring more of them."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()
