"""How every operation begins: it gets a name and is submitted, or is refused and the other ranks are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from elche.collectives import process_sets
from elche.collectives.arguments import problem_of
from elche.collectives.handles import Handle
from elche.collectives.ops import DTYPES
from elche.collectives.process_sets import ProcessSet
from elche.collectives.requests import Request
from elche.errors import ConfigError


def begin(
    kind: str,
    tensors: Sequence[Tensor],
    name: str | None,
    process_set: ProcessSet,
    *,
    outputs: Sequence[Tensor] | None = None,
    finish: Callable[[Handle], Any] | None = None,
    problem: str = "",
    **said: Any,
) -> Handle:
    """Let an operation begin, or refuse it and let the other ranks know.

    Args:
        kind: which operation.
        tensors: this rank's.
        name: of the operation; None: the next number.
        process_set: which ranks take part.
        outputs: which tensors take the results; None: new ones.
        finish: makes of the handle what `synchronize` returns.
        problem: what is wrong with the call, as far as is known.
        **said: what else the other ranks are told, fields of `Request`.

    Returns:
        The handle.

    Raises:
        ConfigError: something is wrong with the call.
    """
    tensors = list(tensors)  # it may be a generator
    channel = process_sets.current().channel(process_set)
    known = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
    dtypes = tuple(DTYPES.get(tensor.dtype, str(tensor.dtype)) for tensor in known)
    shapes = tuple(tuple(tensor.shape) for tensor in known)
    # What is refused takes a name, too: else this rank's next number would be another rank's previous one.
    request = Request(kind, channel.name(name), dtypes, shapes, **said)
    problem = problem or problem_of(request, tensors)
    if problem:
        channel.refuse(request._replace(refusal=problem))
        raise ConfigError(f"{kind} {request.name!r}: {problem}")
    return channel.submit(Handle(request, tensors, outputs, finish))


def root_of(root_rank: int, process_set: ProcessSet) -> dict[str, Any]:
    """Return the root's number in the process set, and what is wrong with it; for `begin`."""
    members = process_set.members()
    if root_rank in members:
        return {"root": members.index(root_rank)}
    return {"root": -1, "problem": f"root_rank must be one of {members}, got {root_rank}"}
