"""Run under mpirun: rank 1 never takes its step; the others must not wait for ever."""

from __future__ import annotations

import signal

import training_rig as rig

import elche

elche.init()
model = rig.mlp()
optimizer, loader = rig.distribute(model, rig.sgd(model), rig.samples(12), 1)
for batch in loader:
    rig.squared(model, batch).backward()
    if elche.rank() == 1:
        signal.pause()
    optimizer.step()
