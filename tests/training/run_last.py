"""Run under mpirun: rank 0 is killed, and then the last rank ends in its own way: `term` or `raise`."""

from __future__ import annotations

import os
import signal
import sys

import training_rig as rig

import elche

elche.init()
first = elche.rank()
model = rig.mlp()
optimizer, loader = rig.distribute(model, rig.sgd(model), rig.samples(24), 1, policy="sync")
for batch in loader:
    optimizer.zero_grad()
    rig.squared(model, batch).backward()
    if first == 0 and optimizer.num_updates == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if first == 1 and elche.size() == 1:
        if sys.argv[1] == "raise":
            raise ValueError("the last one")
        os.kill(os.getpid(), signal.SIGTERM)
    optimizer.step()
