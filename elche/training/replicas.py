"""Are the ranks the same? Compared by description at the start, by hash later; made so by broadcast."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from elche.comm.base import Buffer, Comm, all_gather_bytes, broadcast_bytes
from elche.errors import ElcheError, MismatchError, RankError
from elche.training.buffers import Buffers
from elche.world import World


class Described(Protocol):
    """Something whose description must be the same on all ranks."""

    def describe(self) -> Mapping[str, Any]:
        """Return the plain values that must be equal, by names the user knows."""
        ...


DescribedT = TypeVar("DescribedT", bound=Described)


def agree_on(world: World, make: Callable[[], DescribedT]) -> DescribedT:
    """Make the same thing on each rank and compare, before anything depends on it; collective.

    Args:
        world: the ranks.
        make: makes this rank's; an `ElcheError` that it raises on one rank ends the others too.

    Returns:
        What `make` returned here.

    Raises:
        MismatchError: the ranks differ; the text names the first keys that do, and the ranks. On all ranks.
        RankError: `make` raised on another rank.
    """
    error: ElcheError | None = None
    mine: dict[str, Any]
    try:
        made = make()
        mine = {"values": {key: json.dumps(value) for key, value in made.describe().items()}}
    except ElcheError as caught:
        error, mine = caught, {"error": str(caught)}
    everybody = world.start_up(lambda comm: all_gather_bytes(comm, json.dumps(mine).encode()))
    if error is not None:
        raise error
    _compare([json.loads(text) for text in everybody])
    return made


def _compare(everybody: Sequence[Mapping[str, Any]]) -> None:
    failed = [f"rank {rank}: {one['error']}" for rank, one in enumerate(everybody) if "error" in one]
    if failed:
        raise RankError("; ".join(failed))
    differences = _differences([one["values"] for one in everybody])
    if differences:
        raise MismatchError(
            "the ranks differ: " + "; ".join(differences[:5]) + _and_more(len(differences) - 5)
        )


def broadcast_tensors(comm: Comm, tensors: Sequence[Tensor], root: int = 0) -> None:
    """Overwrite `tensors` on every rank with those of rank `root`, in place; collective."""
    if comm.size == 1:
        return
    tensors = [tensor for tensor in tensors if tensor.numel()]  # bytes of none cannot be viewed as a number
    hosts = [_host_bytes(tensor) for tensor in tensors]
    comm.broadcast(hosts, root=root)
    if comm.rank == root:
        return
    with torch.no_grad():
        for tensor, host in zip(tensors, hosts, strict=True):
            tensor.copy_(torch.from_numpy(host).view(tensor.dtype).view(tensor.shape))


def broadcast_optimizer_state(comm: Comm, optimizer: torch.optim.Optimizer, root: int = 0) -> None:
    """Give every rank the optimizer state and hyperparameters of rank `root`; collective."""
    if comm.size == 1:
        return
    stream = io.BytesIO()
    if comm.rank == root:
        torch.save(optimizer.state_dict(), stream)
    payload = broadcast_bytes(comm, stream.getvalue(), root=root)
    if comm.rank != root:
        state = torch.load(io.BytesIO(payload), weights_only=False, map_location="cpu")
        load_optimizer(optimizer, state)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state into the optimizer's own groups: the script may hold on to one, to set its rate."""
    groups = optimizer.param_groups
    optimizer.load_state_dict(state)
    for group, loaded in zip(groups, optimizer.param_groups, strict=True):
        group.update(loaded)
    optimizer.param_groups = groups


def differing_ranks(comm: Comm, tensors: Sequence[Tensor]) -> list[int]:
    """Return the ranks whose `tensors` are not, bit for bit, those of rank 0; collective."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(_host_bytes(tensor).data)
    digests = comm.all_gather(np.frombuffer(digest.digest(), np.uint8).copy())
    return [rank for rank in range(comm.size) if bytes(digests[rank]) != bytes(digests[0])]


class Replicas:
    """What must be equal on all ranks: parameters, buffers, optimizer state and hyperparameters."""

    def __init__(self, world: World, optimizer: torch.optim.Optimizer, buffers: Buffers) -> None:
        self._world, self._optimizer, self._buffers = world, optimizer, buffers
        self._hash, self._hashed = 0, list[Any]()

    def send_all(self) -> None:
        """Give every rank all of rank 0's; collective."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        broadcast_tensors(self._world.comm, [*parameters, *self._buffers.tensors()])
        self._buffers.mark_synced()
        broadcast_optimizer_state(self._world.comm, self._optimizer)

    def compare(self) -> list[int]:
        """Return the ranks that are not, bit for bit, equal to rank 0, and make them so; collective."""
        comm = self._world.comm
        differing = differing_ranks(comm, self._state_tensors()) if comm.size > 1 else []
        if differing:
            self.send_all()
        return differing

    def hash_of_settings(self) -> int:
        """Return a hash of the optimizer's hyperparameters, such as its learning rates."""
        values = [value for group in self._optimizer.param_groups for value in group.values()]
        same = len(values) == len(self._hashed) and all(map(is_, values, self._hashed))
        if not same or any(isinstance(value, Tensor) for value in values):
            self._hash, self._hashed = zlib.crc32(repr(self._settings()).encode()), values
        return self._hash

    def agree_on_settings(self, hashes: Sequence[int], told: Sequence[int], num_updates: int) -> None:
        """Give every rank the same hyperparameters, where they differ; collective.

        A script that steps its scheduler where `updated` says so cannot do it for a window in which its rank
        had no batch: the loader closed it. The lowest rank that was told of most updates is right.

        Args:
            hashes: every rank's `hash_of_settings()`.
            told: the updates that every rank's script was told of.
            num_updates: the updates there were; where no rank was told of all, none is quite right.
        """
        if len(set(hashes)) == 1:
            return
        if self._world.comm.rank == 0:
            _warn_of_settings(hashes, told, num_updates)
        texts = all_gather_bytes(self._world.comm, pickle.dumps(self._settings()))
        right = pickle.loads(texts[told.index(max(told))])
        for group, settings in zip(self._optimizer.param_groups, right, strict=True):
            for name, value in settings.items():
                if isinstance(group[name], Tensor):
                    group[name].fill_(value)
                else:
                    group[name] = value

    def _settings(self) -> list[dict[str, Any]]:
        groups = [
            {k: v.item() if isinstance(v, Tensor) and v.numel() == 1 else v for k, v in group.items()}
            for group in self._optimizer.param_groups
        ]
        return [{k: v for k, v in group.items() if isinstance(v, (int, float, tuple))} for group in groups]

    def _state_tensors(self) -> list[Tensor]:
        """Buffers, parameters and every tensor of their optimizer state, in an order equal on all ranks."""
        found = self._buffers.tensors()
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                state = self._optimizer.state.get(parameter, {})
                found += [parameter, *(state[key] for key in sorted(state) if isinstance(state[key], Tensor))]
        return found


def _warn_of_settings(hashes: Sequence[int], told: Sequence[int], num_updates: int) -> None:
    """Warn where no rank's settings are surely right, or ranks told of as many updates differ."""
    differ = len(set(zip(told, hashes, strict=True))) > len(set(told))
    if differ or max(told) < num_updates:
        warnings.warn(
            "learning rates or the like differ between ranks, which do different numbers of batches; "
            "one rank's count. Step schedulers on every rank once per epoch, or at every update by "
            "optimizer.register_step_post_hook(lambda *_: scheduler.step())",
            RuntimeWarning,
            stacklevel=3,
        )


def _host_bytes(tensor: Tensor) -> Buffer:
    """A host array of the tensor's bytes, in logical order; aliases a contiguous CPU tensor."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    array: Buffer = flat.cpu().view(torch.uint8).numpy()
    return array


def _differences(values: Sequence[Mapping[str, str]]) -> list[str]:
    keys = list(dict.fromkeys(key for one in values for key in one))
    return [
        _difference(key, [one.get(key, "absent") for one in values]) for key in keys if _differ(key, values)
    ]


def _differ(key: str, values: Sequence[Mapping[str, str]]) -> bool:
    return any(one.get(key) != values[0].get(key) for one in values)


def _difference(key: str, values: Sequence[str]) -> str:
    odd = next(rank for rank, value in enumerate(values) if value != values[0])
    return f"{key} is {values[0]} on rank 0 but {values[odd]} on rank {odd}"


def _and_more(count: int) -> str:
    return f"; and {count} more" if count > 0 else ""
