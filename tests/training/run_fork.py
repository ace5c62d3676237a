"""Run under mpirun: in mid-epoch each rank forks a child that ends by `sys.exit`, and trains on."""

from __future__ import annotations

import os
import sys
import warnings

import training_rig as rig

import elche

warnings.filterwarnings(
    "ignore", ".*fork", DeprecationWarning
)  # of processes with threads, such as signs of life
elche.init()
model = rig.mlp()
optimizer, loader = rig.distribute(model, rig.sgd(model), rig.samples(24), 1, policy="sync")
child = None
for batch in loader:
    if child is None and optimizer.num_updates == 3:
        child = os.fork()
        if child == 0:
            print("child", flush=True)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0
    optimizer.zero_grad()
    rig.squared(model, batch).backward()
    optimizer.step()
print("trained", flush=True)
