"""Which operations take place next, and which are refused: a pure function of what all ranks have said.

Every rank feeds the same news to its own `Negotiation`, so all come to the same verdicts in the same order
without being told. No clock, no communicator: a rank's clock speaks through `News.expired`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from elche.collectives.requests import (
    ADD_SET,
    ALLGATHER,
    ALLTOALL,
    JOIN,
    REMOVE_SET,
    News,
    Request,
)

Parts = Mapping[int, Request]  # by rank


class Ready(NamedTuple):
    """An operation that all ranks have come to; those that have joined are not among `parts`."""

    name: str
    parts: Parts

    @property
    def one(self) -> Request:
        """What all parts have in common."""
        return next(iter(self.parts.values()))


class Failed(NamedTuple):
    """An operation that is refused on all ranks that have a part in it.

    Attributes:
        name: of the operation.
        parts: of the ranks that have submitted it.
        why: the same text on all ranks.
        differs: whether the ranks' calls differ; else somebody did not come.
    """

    name: str
    parts: Parts
    why: str
    differs: bool


class Joined(NamedTuple):
    """All ranks have joined; `last` came last."""

    last: int


Verdict = Ready | Failed | Joined


class Negotiation:
    """What the ranks have submitted so far and not settled."""

    def __init__(self, size: int) -> None:
        """Begin with nothing.

        Args:
            size: how many ranks there are.
        """
        self._ranks = frozenset(range(size))
        self._pending: dict[str, dict[int, Request]] = {}  # by name, in order of the first to submit it
        self._joined: dict[int, None] = {}  # in order

    def missing(self, name: str) -> list[int]:
        """Return the ranks that an operation waits for, as far as the last round told."""
        return sorted(self._ranks - self._pending.get(name, {}).keys() - self._joined.keys())

    def advance(self, news_w: Sequence[News]) -> list[Verdict]:
        """Take in a round.

        Args:
            news_w: each rank's news, in rank order.

        Returns:
            What is settled by it, in the order in which it is to be done.
        """
        for rank, news in enumerate(news_w):
            for request in news.requests:
                if request.kind == JOIN:
                    self._joined[rank] = None
                else:
                    self._pending.setdefault(request.name, {})[rank] = request
        verdicts: list[Verdict] = [*self._doubled(news_w)]
        ready = [name for name, parts in self._pending.items() if self._is_complete(parts)]
        verdicts += [self._judged(name, self._pending.pop(name)) for name in ready]
        verdicts += self._expired(news_w)
        if self._joined.keys() == self._ranks:
            verdicts.append(Joined([*self._joined][-1]))
            self._joined.clear()
        return verdicts

    def _is_complete(self, parts: Parts) -> bool:
        return len(parts) + len(self._joined) >= len(self._ranks) and (
            self._ranks <= parts.keys() | self._joined.keys()
        )

    def _judged(self, name: str, parts: Parts) -> Verdict:
        why = difference(name, parts)
        one = next(iter(parts.values()))
        if not why and one.root >= 0 and one.root not in parts:
            why = f"root rank {one.root} of {one.kind} {name!r} has joined"
        return Failed(name, parts, why, True) if why else Ready(name, parts)

    def _doubled(self, news_w: Sequence[News]) -> list[Failed]:
        ranks: dict[str, list[int]] = {}
        for rank, news in enumerate(news_w):
            for name in news.doubled:
                ranks.setdefault(name, []).append(rank)
        return [
            Failed(
                name,
                self._pending.pop(name),
                f"duplicate name: {_ranks(who)} submitted {name!r} again before it had ended",
                True,
            )
            for name, who in ranks.items()
            if name in self._pending
        ]

    def _expired(self, news_w: Sequence[News]) -> list[Failed]:
        names = dict.fromkeys(name for news in news_w for name in news.expired)
        failed = []
        for name in names:
            if name in self._pending:
                missing, parts = self.missing(name), self._pending.pop(name)
                kind = next(iter(parts.values())).kind
                why = f"{kind} {name!r} waited too long for {_ranks(missing)}; {_ranks([*parts])} had come"
                failed.append(Failed(name, parts, why, False))
        return failed


def difference(name: str, parts: Parts) -> str:
    """Return how the ranks' parts in one operation differ, with the ranks; empty if they do not.

    Args:
        name: of the operation.
        parts: by rank.

    Returns:
        The text, in Horovod's words where it has some.
    """
    one = next(iter(parts.values()))
    if not one.refusal and all(part == one for part in parts.values()):
        return ""
    refused = {rank: request.refusal for rank, request in parts.items() if request.refusal}
    if refused:
        return "; ".join(f"rank {rank} refused {name!r}: {why}" for rank, why in refused.items())
    for what, value in _compared(one.kind):
        by_value: dict[Any, list[int]] = {}
        for rank, request in sorted(parts.items()):
            by_value.setdefault(value(request), []).append(rank)
        if len(by_value) > 1:
            said = "; ".join(f"{_ranks(ranks)}: {_shown(value)}" for value, ranks in by_value.items())
            return f"Mismatched {what} of {name!r}: {said}"
    return ""


def _compared(kind: str) -> list[tuple[str, Callable[[Request], Any]]]:
    """Return what must be the same in all parts of an operation."""
    rows_vary = kind in (ALLGATHER, ALLTOALL)
    shapes: Callable[[Request], Any] = _shapes_but_rows if rows_vary else lambda request: request.shapes
    compared: list[tuple[str, Callable[[Request], Any]]] = [
        ("operations", lambda request: request.kind),
        ("numbers of tensors", lambda request: len(request.shapes)),
        ("data types", lambda request: request.dtypes),
        (f"{kind} tensor shapes", shapes),
        ("reduce operations", lambda request: request.op),
        ("prescale and/or postscale factors", lambda request: (request.prescale, request.postscale)),
        (f"{kind} root ranks", lambda request: request.root),
    ]
    if kind in (ADD_SET, REMOVE_SET):
        compared.append(("ranks", lambda request: request.splits))
    if kind == ALLGATHER:  # of a sparse tensor's parts
        compared.append(("sparse tensor shapes", lambda request: request.splits))
    return compared


def _shapes_but_rows(request: Request) -> Any:
    return tuple(("rows", *shape[1:]) for shape in request.shapes)


def _shown(value: Any) -> str:
    """Return a value as texts show it; of a single tensor without the tuple around it."""
    if isinstance(value, tuple) and len(value) == 1 and not isinstance(value[0], int):
        value = value[0]
    return str(_lists(value)).replace("'", "")


def _lists(value: Any) -> Any:
    return [_lists(part) for part in value] if isinstance(value, tuple) else value


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {list(ranks)}"
