"""Whether the ranks can sum by NCCL, and if not, why: found on each rank, judged alike on all."""

from __future__ import annotations

import json
import textwrap
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from elche.comm.base import Comm, all_gather_bytes

LONGEST = 160
ADVICE = "pip install 'elche[cuda{major}]' (cupy-cuda{major}x)"


class Ready(NamedTuple):
    """What one rank has.

    Attributes:
        gpu: identity of the GPU that its gradients are on; None: they are not on one.
        reason: why it cannot use NCCL; None: it can.
    """

    gpu: str | None = None
    reason: str | None = None


def import_cupy() -> Any:
    """Return CuPy with its `cuda.nccl`; `ImportError` where there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of an NCCL that it does not find; we tell it in our way
        import cupy
        import cupy.cuda.nccl
    return cupy


def find(cuda: str | None, load: Callable[[], Any] | None = None) -> tuple[Any, str | None]:
    """Return CuPy, and why it cannot be used here; None: it can.

    Args:
        cuda: the version of CUDA that PyTorch was built for, such as "12.8"; None: for none.
        load: imports CuPy; None: `import_cupy`.

    Returns:
        CuPy, None where there is none, and a reason.
    """
    if cuda is None:
        return None, "PyTorch was not built for CUDA"
    major = int(cuda.partition(".")[0])
    advice = ADVICE.format(major=major)
    try:
        cupy = (load or import_cupy)()
    except ModuleNotFoundError:
        return None, f"CuPy is not installed: {advice}"
    except ImportError as error:
        return None, f"CuPy cannot be imported ({_line(error)}): {advice}"
    built = cupy.cuda.runtime.runtimeGetVersion() // 1000
    if built != major:
        return (
            cupy,
            f"CuPy is for CUDA {built}, PyTorch for CUDA {major}: {advice} in place of cupy-cuda{built}x",
        )
    if not cupy.cuda.nccl.available:
        return cupy, f"CuPy finds no NCCL: pip install nvidia-nccl-cu{major}"
    try:
        cupy.cuda.runtime.getDeviceCount()
    except RuntimeError as error:
        return cupy, f"CuPy finds no CUDA driver that it can use ({_line(error)})"
    return cupy, None


def why_not(ready: Sequence[Ready]) -> str | None:
    """Judge what all ranks have.

    Args:
        ready: by rank.

    Returns:
        Why they cannot sum by NCCL, in one line; None: they can.

    Example:
        >>> why_not([Ready("a"), Ready("b"), Ready("a")])
        'ranks 0, 2 share a GPU, which NCCL refuses'
        >>> why_not([Ready("a"), Ready()])
        'rank 1 has its model on no GPU'
    """
    if without := [rank for rank, each in enumerate(ready) if each.gpu is None]:
        return f"{_ranks(without)} {'has its' if len(without) == 1 else 'have their'} model on no GPU"
    if reason := next((each.reason for each in ready if each.reason is not None), None):
        return f"on {_ranks([rank for rank, each in enumerate(ready) if each.reason == reason])} {reason}"
    for each in ready:
        if len(sharing := [rank for rank, other in enumerate(ready) if other.gpu == each.gpu]) > 1:
            return f"{_ranks(sharing)} share a GPU, which NCCL refuses"
    return None


def agree(comm: Comm, mine: Ready) -> str | None:
    """Tell the others what this rank has; return why NCCL cannot be used, alike on all ranks. Collective.

    Args:
        comm: the ranks.
        mine: what this rank has.

    Returns:
        One line; None: it can.
    """
    return why_not([Ready(*json.loads(word)) for word in all_gather_bytes(comm, json.dumps(mine).encode())])


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _line(error: BaseException) -> str:
    """Return what is behind an error, in one line: CuPy explains a failed import in twenty."""
    text = str(error.__cause__ or error)
    return textwrap.shorten(text, LONGEST) or type(error).__name__
