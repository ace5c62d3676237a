"""Train a small network on scikit-learn's digits with elche: `diff` it with train_torch.py.

elche-run -np 4 examples/train_elche.py --speeds 1,1,2,4    # an emulated rig, on any machine
mpirun -np 2 python examples/train_elche.py                 # two ranks, as fast as they are
python examples/train_elche.py                              # one
"""

from __future__ import annotations

import argparse

import digits
import emulated
import summary
import torch
import torch.nn.functional as F  # noqa: N812

import elche


def train(args: argparse.Namespace, policy: str) -> summary.Outcome:
    torch.manual_seed(args.seed)
    train_set, test_set = digits.load()
    model = digits.Net()
    loader = elche.DataLoader(train_set, batch_size=4, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    optimizer = elche.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        loader=loader,
        cadence=elche.Cadence(policy=policy),
    )
    emulated.slow_down(model, args, batch_size=4, rank=elche.rank(), size=elche.size())
    progress = summary.Progress(policy, args.epochs, visible=elche.rank() == 0)

    for epoch in range(args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            progress.show(epoch, optimizer.num_updates)
    return progress.finish(digits.accuracy(model, test_set), optimizer.num_updates)


if __name__ == "__main__":
    torch.set_num_threads(1)  # so small a network is faster on one thread
    args = digits.arguments(emulated.parser())
    log = summary.start_log()
    elche.init()
    outcomes = [train(args, policy) for policy in ("cadence", "sync")]
    if elche.rank() == 0:
        print(summary.table(f"digits on {emulated.describe(args, elche.size())}", outcomes, log))
    elche.shutdown()
