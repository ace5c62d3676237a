"""What a rank says of an operation before it takes place: all that the others have to know of it."""

from __future__ import annotations

import pickle
from typing import NamedTuple

Shape = tuple[int, ...]

ALLREDUCE, ALLGATHER, BROADCAST = "allreduce", "allgather", "broadcast"
ALLTOALL, REDUCESCATTER, BARRIER, JOIN = "alltoall", "reducescatter", "barrier", "join"
JOIN_NAME = "<join>"  # which no tensor is likely to have
ADD_SET, REMOVE_SET = "add_process_set", "remove_process_set"


class Request(NamedTuple):
    """One rank's part in an operation; a grouped one has several tensors.

    Attributes:
        kind: which operation, such as "allreduce".
        name: of this one; the ranks' requests of one name belong together.
        dtypes: of the tensors.
        shapes: of the tensors.
        op: how values are reduced; empty where they are not.
        root: whose values count; -1 where all ranks' do.
        prescale: the factor before the reduction.
        postscale: and after it.
        splits: of an alltoall, how many rows go to each rank; of a sparse tensor, its shape; of a process
            set, its ranks.
        refusal: why this rank refused the call; its caller has been told so.
    """

    kind: str
    name: str
    dtypes: tuple[str, ...] = ()
    shapes: tuple[Shape, ...] = ()
    op: str = ""
    root: int = -1
    prescale: float = 1.0
    postscale: float = 1.0
    splits: tuple[int, ...] = ()
    refusal: str = ""


class News(NamedTuple):
    """What a rank tells the others in one round.

    Attributes:
        requests: what it has submitted since the last round.
        expired: names that it has waited for in vain.
        doubled: names that it has submitted again before they had ended.
        leaving: whether it comes to no further round.
    """

    requests: tuple[Request, ...] = ()
    expired: tuple[str, ...] = ()
    doubled: tuple[str, ...] = ()
    leaving: bool = False


def encode(news: News) -> bytes:
    """Return `news` as bytes; equal news are equal bytes."""
    requests = [tuple(request) for request in news.requests]
    return pickle.dumps((requests, news.expired, news.doubled, news.leaving), protocol=4)


def decode(text: bytes) -> News:
    """Return the news that `encode` was given."""
    requests, expired, doubled, leaving = pickle.loads(text)
    return News(tuple(Request(*request) for request in requests), expired, doubled, leaving)
