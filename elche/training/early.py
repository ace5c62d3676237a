"""Sums begun early: in a window's last batch a bucket goes on its way as soon as its gradients are there.

It is a guess. The script may still change gradients before `step()`: clip or unscale them, or go backward
once more. So what the bucket will hold is worked out beside what was accumulated; `step()` accumulates as
ever; and where that comes to other bits than were sent, all ranks sum again.

Buckets go from the last to the first, on every rank alike: backward comes to the last layer first. One whose
gradients do not all come keeps those before it waiting, until `step()`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from elche.training import streams
from elche.training.buckets import Bucket
from elche.training.gradients import Gradients

COLUMNS = 1024
MOST_FALLEN = 3  # in a row, before a rank guesses no more: its script changes gradients in every batch


class Early:
    """What one rank has begun early in the window under way."""

    def __init__(self, gradients: Gradients) -> None:
        """Begin nothing.

        Args:
            gradients: this rank's.
        """
        self._gradients = gradients
        self._lock = threading.Lock()  # a script may go backward in several threads
        self._hooks: list[RemovableHandle] = []
        self._sent: list[tuple[Bucket, Tensor]] = []
        self._missing: list[int] = []  # gradients, by bucket
        self._weight, self._num_fallen = 0.0, 0
        self._begin: Callable[[Bucket], None] = lambda _: None

    def watch(self, weight: float, begin: Callable[[Bucket], None]) -> None:
        """Begin with buckets from now on, as the gradients of a batch come.

        Expected are the gradients that the batch before had.

        Args:
            weight: the batch's.
            begin: begins to sum a bucket whose `sum_n` holds what its `own_n` is going to hold.
        """
        self.forget()
        if self._num_fallen >= MOST_FALLEN:
            return
        self._weight, self._begin = weight, begin
        awaited = self._gradients.expected()
        for bucket in self._gradients.buckets:
            mine = [index for index in bucket.indices if awaited[index]]
            self._missing.append(len(mine))
            for index in mine:
                parameter = self._gradients.parameters[index]
                come = partial(self._come, len(self._missing) - 1)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(come))  # type: ignore[no-untyped-call]

    def stands(self) -> bool:
        """Return whether all that was begun was as `step()` has accumulated it; waits for the device."""
        stands = all(torch.equal(sent, fingerprint(bucket.own_n)) for bucket, sent in self._sent)
        if self._sent:
            self._num_fallen = 0 if stands else self._num_fallen + 1
        return stands

    def forget(self) -> None:
        """Begin nothing more; what was begun counts no longer."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._missing.clear()
        self._sent.clear()

    def _come(self, number: int, parameter: Tensor) -> None:
        """A gradient of a bucket has come."""
        with self._lock, torch.no_grad():
            if number >= len(self._missing) or streams.is_capturing(parameter.device):
                return  # of a bucket that has gone: should it be another now, step() comes upon it
            self._missing[number] -= 1
            try:
                while self._missing and self._missing[-1] <= 0:
                    self._missing.pop()
                    self._send(self._gradients.buckets[len(self._missing)])
            except Exception:  # of the ranks or the device: step() comes upon it, backward() is the script's
                self._missing.clear()

    def _send(self, bucket: Bucket) -> None:
        self._gradients.foresee(bucket, self._weight)
        self._sent.append((bucket, fingerprint(bucket.sum_n)))
        self._begin(bucket)


def fingerprint(value_n: Tensor) -> Tensor:
    """Return whole numbers that tell whether the bits of a bucket have changed; does not wait for the device.

    The bits, as whole numbers in rows of 1,024, are summed over each column and over each row, exactly; those
    of an incomplete row stand as they are. To go unseen a change has to keep all of these sums, as to clip,
    scale, negate or add does not.

    Args:
        value_n: a bucket.

    Returns:
        int64; one number for 1,024 of the bucket's, and at most 2,047 more.

    Example:
        >>> fingerprint(torch.tensor([1.0, 0.0])).tolist()
        [1065353216, 0]
    """
    bits_n = value_n.view(torch.int32)
    whole = bits_n.numel() // COLUMNS * COLUMNS
    bits_rc = bits_n[:whole].view(-1, COLUMNS)
    sums = [bits_rc.sum(dim, dtype=torch.int64) for dim in (0, 1) if whole]
    return torch.cat([*sums, bits_n[whole:].to(torch.int64)])
