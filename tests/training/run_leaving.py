"""Run under mpirun: rank 1 leaves in mid-epoch by `sys.exit(5)`; those who train on hear of it at once."""

from __future__ import annotations

import sys

import training_rig as rig

import elche

elche.init()
model = rig.mlp()
optimizer, loader = rig.distribute(model, rig.sgd(model), rig.samples(24), 1, policy="sync")
for batch in loader:
    if elche.rank() == 1 and optimizer.num_updates == 1:
        sys.exit(5)
    optimizer.zero_grad()
    rig.squared(model, batch).backward()
    optimizer.step()
