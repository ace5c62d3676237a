"""Train a small network on scikit-learn's digits with PyTorch alone: `diff` it with train_elche.py.

python examples/train_torch.py
"""

from __future__ import annotations

import argparse

import digits
import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.data import DataLoader


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    train_set, test_set = digits.load()
    model = digits.Net()
    loader = DataLoader(train_set, batch_size=4, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    for epoch in range(args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        print(f"epoch {epoch + 1} of {args.epochs}, test accuracy {digits.accuracy(model, test_set):.1%}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # so small a network is faster on one thread
    train(digits.arguments())
