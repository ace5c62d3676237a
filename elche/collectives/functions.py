"""Parameters, optimizer state and any other object, from one rank to all, or from all to all."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from elche.collectives.asynchronous import broadcast_async_, synchronize
from elche.collectives.begin import begin, root_of
from elche.collectives.handles import Handle
from elche.collectives.process_sets import ProcessSet, global_process_set
from elche.collectives.requests import ALLGATHER
from elche.errors import ConfigError, HorovodInternalError, MismatchError


def broadcast_parameters(
    params: Mapping[str, Tensor] | Iterable[tuple[str, Tensor] | Tensor],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite parameters and buffers on every rank with those of rank `root_rank`.

    Args:
        params: `model.state_dict()`, `model.named_parameters()`, or bare tensors in one order on all ranks.
        root_rank: whose.
        process_set: which ranks take part.

    Raises:
        ConfigError: what `params` holds is no tensor; the others are broadcast all the same.
        HorovodInternalError: the ranks' tensors differ, or a rank was lost.
    """
    entries = list(params.items() if isinstance(params, Mapping) else params)
    handles: list[Handle] = []
    failure: ConfigError | HorovodInternalError | None = None
    for number, entry in enumerate(entries):
        name, tensor = entry if isinstance(entry, tuple) and len(entry) == 2 else (number, entry)
        try:
            handles.append(broadcast_async_(tensor, root_rank, f"broadcast_parameters.{name}", process_set))
        except ConfigError as error:
            failure = failure or error
    for handle in handles:  # all of them: none is under way when the first error is raised
        try:
            synchronize(handle)
        except (ConfigError, HorovodInternalError) as error:
            failure = failure or error
    if failure is not None:
        raise failure


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
    is_root, why = _is_root(root_rank, process_set), ""
    text = _text_of(optimizer.state_dict(), root_rank, "optimizer", process_set)
    if not is_root:
        try:
            optimizer.load_state_dict(_read(text, "cpu"))
        except Exception as error:  # whatever it is, the others wait to hear of it
            why = str(error) or repr(error)
    members = process_set.members()
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

    Raises:
        ConfigError: pickle cannot write it, or `root_rank` is none of the ranks.
        HorovodInternalError: so it is on another rank, or one was lost.
    """
    text = _text_of(obj, root_rank, name, process_set)
    return obj if _is_root(root_rank, process_set) else _read(text, None)


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

    Raises:
        ConfigError: pickle cannot write it.
        HorovodInternalError: so it is on another rank, or one was lost.
    """
    texts = _gather(*_written(obj), name, process_set)
    return [_read(text, None) for text in texts]


def _is_root(root_rank: int, process_set: ProcessSet) -> bool:
    return root_of(root_rank, process_set) == {"root": process_set.rank()}


def _text_of(obj: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
    """Return the root's object, written."""
    said = root_of(root_rank, process_set)
    text, problem = torch.empty(0, dtype=torch.uint8), said.get("problem", "")
    if _is_root(root_rank, process_set):
        text, problem = _written(obj)
    root: int = said["root"]
    return _gather(text, problem, name, process_set, root)[root]


def _gather(
    text: Tensor, problem: str, name: str | None, process_set: ProcessSet, root: int = -1
) -> list[Tensor]:
    """Return every rank's bytes."""

    def apart(handle: Handle) -> list[Tensor]:
        return list(handle.results[0].split_with_sizes(handle.sizes))

    handle = begin(ALLGATHER, [text], name, process_set, finish=apart, problem=problem, root=root)
    texts: list[Tensor] = synchronize(handle)
    return texts


def _written(obj: Any) -> tuple[Tensor, str]:
    """Return an object as bytes, and why it cannot be written; empty where it can."""
    file = io.BytesIO()
    try:
        torch.save(obj, file)
    except Exception as error:  # pickle calls what the object likes
        return torch.empty(0, dtype=torch.uint8), f"{type(obj).__name__} cannot be pickled: {error!r}"
    return torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8), ""


def _read(text: Tensor, device: str | None) -> Any:
    return torch.load(io.BytesIO(text.numpy().tobytes()), map_location=device, weights_only=False)
