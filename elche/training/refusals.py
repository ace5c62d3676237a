"""What a training loop must not do, and how it is told: each error names the way out."""

from __future__ import annotations

from collections.abc import Sequence

from elche.errors import NonFiniteError, UsageError
from elche.policy.dispatch import EpochPool, Range


def two_loaders() -> UsageError:
    """Two loaders in flight: their windows would mix."""
    return UsageError(
        "two loaders are gone through at once, each with an optimizer of its own: let each epoch "
        "run to its end, or give all parameters to one optimizer"
    )


def loop_left(pool: EpochPool) -> UsageError:
    """A loop that ended before its epoch did."""
    left = sum(stop - start for start, stop in pool.uncovered())
    return UsageError(
        f"the loop was left with {left} samples of the epoch not trained yet; elche deals every "
        "sample of an epoch once: let the loop over the loader run to its end"
    )


def restored_in_epoch(epoch: int) -> UsageError:
    """A state that is taken up while an epoch is under way: what was trained of it would be lost."""
    return UsageError(
        f"load() or restore() in the middle of epoch {epoch}: they come before training, or between epochs"
    )


def shut_down() -> UsageError:
    """A batch after the end."""
    return UsageError("elche.shutdown() has been called: this optimizer and its loader train no more")


def no_step(position: Range) -> UsageError:
    """A batch without its step."""
    start, stop = position
    return UsageError(
        f"optimizer.step() was not called for the batch of samples {start}..{stop}; call it for "
        "every batch: accumulation over batches is the cadence's work (anchor=)"
    )


def no_batch() -> UsageError:
    """A step without its batch."""
    return UsageError("optimizer.step() without a batch: one step for each batch of the loader")


def not_finite(names: Sequence[str], position: Range) -> NonFiniteError:
    """A batch with inf or nan, where that was to raise."""
    start, stop = position
    return NonFiniteError(
        f"inf or nan in the gradients of {', '.join(names[:5])} for the batch of samples "
        f"{start}..{stop}, and nonfinite='raise'"
    )
