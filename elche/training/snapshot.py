"""The whole state of the training as one dictionary: for a newcomer, for a checkpoint, to be compared."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from elche.elastic.digest import digest
from elche.elastic.trainer import FORMAT, Carried
from elche.errors import MismatchError
from elche.training.buffers import Buffers
from elche.training.gradients import Gradients
from elche.training.job import Job
from elche.training.replicas import load_optimizer
from elche.world import World

# What of a description must be the same to go on from it: always, and in the middle of an epoch.
OF_TENSORS = ("optimizer", "parameter", "buffer", "objects of TorchState")
OF_POSITIONS = ("DataLoader's len(dataset)", "DataLoader's shuffle", "DataLoader's seed")


class Snapshot:
    """Captures and restores what all ranks have alike: tensors, job, and what a TorchState adds.

    Attributes:
        extras: what else there is, by name.
    """

    extras: dict[str, Carried]

    def __init__(
        self,
        world: World,
        job: Job,
        optimizer: torch.optim.Optimizer,
        gradients: Gradients,
        buffers: Buffers,
        description: Mapping[str, Any],
    ) -> None:
        """Note what there is.

        Args:
            world: of this rank.
            job: what all ranks know alike.
            optimizer: the plain one.
            gradients: name the parameters.
            buffers: the model's.
            description: what must be equal on all ranks, by names the user knows.
        """
        self._world, self._job, self._optimizer = world, job, optimizer
        self._gradients, self._buffers, self._description = gradients, buffers, dict(description)
        self.extras = {}

    def capture(self) -> dict[str, Any]:
        """Return the state as of the last committed window; its tensors are the model's own."""
        parameters = zip(self._gradients.names, self._gradients.parameters, strict=True)
        return {
            "format": FORMAT,
            "description": self._description,
            "model": {name: parameter.detach() for name, parameter in parameters},
            "buffers": dict(zip(self._buffers.names, self._buffers.tensors(), strict=True)),
            "optimizer": self._optimizer.state_dict(),
            "job": self._job.state_dict(),
            "left": self._job.left,
            "rng": _random_states(),
            "elapsed_seconds": self._world.stamp()["time_seconds"],
            "extras": {name: carried.state_dict() for name, carried in self.extras.items()},
        }

    def digest(self) -> bytes:
        """Return a hash of all that must be equal on all ranks: all but the dice and the clock."""
        state = self.capture()
        return digest({key: state[key] for key in state if key not in ("rng", "elapsed_seconds")})

    def enter(self, state: dict[str, Any], slot: int) -> None:
        """Become equal to a rank that trains, in the midst of its window.

        Args:
            state: what it captured.
            slot: the one this rank holds from now on.

        Raises:
            MismatchError: this rank has another model, data or settings; the text names what differs.
        """
        self._require_same(state, "this rank cannot enter, it differs from those that train", lambda _: True)
        self._load_tensors(state)
        self._job.slot = slot
        self._job.load_state_dict(state["job"])
        _set_random_states(state["rng"])
        self._world.set_elapsed(state["elapsed_seconds"])

    def resume(self, state: dict[str, Any]) -> None:
        """Take up what another job left, on however many ranks.

        Args:
            state: what one of its ranks captured.

        Raises:
            MismatchError: that job had another model or optimizer, or in mid-epoch another order of other
                samples; the text names what differs, and nothing is changed.
        """
        left = state["left"]
        needed = OF_TENSORS if left is None else OF_TENSORS + OF_POSITIONS
        self._require_same(state, "it is of another training", lambda key: key.startswith(needed))
        self._load_tensors(state)
        self._job.resume(state["job"], left)

    def _require_same(self, state: Mapping[str, Any], wrong: str, is_needed: Callable[[str], bool]) -> None:
        theirs = {**state["description"], "objects of TorchState": sorted(state["extras"])}
        mine = {**self._description, "objects of TorchState": sorted(self.extras)}
        keys = [key for key in {**theirs, **mine} if is_needed(key) and theirs.get(key) != mine.get(key)]
        if keys:
            named = "; ".join(
                f"{key} is {theirs.get(key, 'absent')} there and {mine.get(key, 'absent')} here"
                for key in keys[:5]
            )
            raise MismatchError(f"{wrong}: {named}")

    def _load_tensors(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, parameter in zip(self._gradients.names, self._gradients.parameters, strict=True):
                parameter.copy_(state["model"][name])
            for name, buffer in zip(self._buffers.names, self._buffers.tensors(), strict=True):
                buffer.copy_(state["buffers"][name])
        self._buffers.mark_synced()
        load_optimizer(self._optimizer, state["optimizer"])
        for name, carried in self.extras.items():
            carried.load_state_dict(state["extras"][name])


def _random_states() -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": cuda,
    }


def _set_random_states(states: Mapping[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
