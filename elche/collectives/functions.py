"""Parameters, optimizer state and any other object, from one rank to all, or from all to all."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from elche.collectives.asynchronous import broadcast_async_, synchronize
from elche.collectives.begin import begin
from elche.collectives.handles import Handle
from elche.collectives.process_sets import ProcessSet, global_process_set
from elche.collectives.requests import ALLGATHER
from elche.errors import ConfigError, MismatchError


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite parameters and buffers on every rank with those of rank `root_rank`.

    Args:
        params: `model.state_dict()` or `model.named_parameters()`.
        root_rank: whose.
        process_set: which ranks take part.

    Raises:
        ConfigError: `params` is neither, or what it holds is no tensor.
        OperationMismatchError: the ranks' tensors differ.
    """
    named = list(params.items() if isinstance(params, Mapping) else params)
    handles = []
    for entry in named:
        name, tensor = entry if isinstance(entry, tuple) and len(entry) == 2 else ("", entry)
        if not isinstance(tensor, Tensor) or not name:
            raise ConfigError(
                "params must be a state_dict or named_parameters, of names and tensors, got an entry of type "
                f"{type(tensor).__name__}"
            )
        handles.append(broadcast_async_(tensor, root_rank, f"broadcast_parameters.{name}", process_set))
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Give every rank the optimizer state of rank `root_rank`, hyperparameters too.

    Any optimizer will do, LBFGS too; no rank needs to have stepped before.

    Args:
        optimizer: this rank's, of the same parameters in the same groups.
        root_rank: whose.
        process_set: which ranks take part.

    Raises:
        MismatchError: some rank's optimizer cannot take that state; the text says which and why.
    """
    root, members = _root(root_rank, process_set), process_set.members()
    state = _object_of(optimizer.state_dict(), root, "optimizer", process_set, "cpu")
    why = ""
    if process_set.rank() != root:
        try:
            optimizer.load_state_dict(state)
        except (ValueError, KeyError) as error:
            why = str(error) or repr(error)
    reasons = zip(members, allgather_object(why, process_set=process_set), strict=True)
    refused = [f"rank {rank}: {why}" for rank, why in reasons if why]
    if refused:
        raise MismatchError(f"the optimizer state of rank {root_rank} does not fit: {'; '.join(refused)}")


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of rank `root_rank`, which pickle must be able to write.

    Args:
        obj: anything; only the root's counts.
        root_rank: whose.
        name: of the operation; None: the next number.
        process_set: which ranks take part.

    Returns:
        On the root the object itself, on the others a copy.
    """
    return _object_of(obj, _root(root_rank, process_set), name, process_set, None)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return every rank's object, which pickle must be able to write, in rank order.

    Args:
        obj: anything.
        name: of the operation; None: the next number.
        process_set: which ranks take part.

    Returns:
        Copies, this rank's too.
    """
    texts = _gather(_written(obj), name, process_set, -1)
    return [_read(text, None) for text in texts]


def _object_of(obj: Any, root: int, name: str | None, process_set: ProcessSet, device: str | None) -> Any:
    is_root = process_set.rank() == root
    nothing = torch.empty(0, dtype=torch.uint8)
    texts = _gather(_written(obj) if is_root else nothing, name, process_set, root)
    return obj if is_root else _read(texts[root], device)


def _gather(text: Tensor, name: str | None, process_set: ProcessSet, root: int) -> list[Tensor]:
    """Return every rank's bytes."""

    def apart(handle: Handle) -> list[Tensor]:
        return list(handle.results[0].split_with_sizes(handle.sizes))

    texts: list[Tensor] = synchronize(begin(ALLGATHER, [text], name, process_set, finish=apart, root=root))
    return texts


def _written(obj: Any) -> Tensor:
    file = io.BytesIO()
    torch.save(obj, file)
    return torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)


def _read(text: Tensor, device: str | None) -> Any:
    return torch.load(io.BytesIO(text.numpy().tobytes()), map_location=device, weights_only=False)


def _root(root_rank: int, process_set: ProcessSet) -> int:
    """Return the root's number in the process set."""
    members = process_set.members()
    if root_rank not in members:
        raise ConfigError(f"root_rank must be one of {members}, got {root_rank}")
    return members.index(root_rank)
