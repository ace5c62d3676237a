"""Flat gradient buckets: one per dtype of accumulation and device, of capped size.

Legend: `_n`, elements of a bucket, padding included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from elche.comm.base import Buffer
from elche.kernels import SlotLayout, Views, flag_nonfinite_, scale_accumulate_, unpack_

CAP_BYTES = 32 * 2**20  # a larger one hides less behind the next; MPI is at full speed from 4 MiB on


@dataclass
class Bucket:
    """The slots of some parameters: what this rank summed in the window, and what all ranks summed.

    The sum over the ranks goes to a buffer of its own, so that what was accumulated stays whole until the
    window is committed.

    Attributes:
        indices: which of the optimizer's parameters have their slots here, in slot order.
        layout: where the slots lie.
        own_n: weighted sum of this rank's gradients.
        sum_n: sum of `own_n` over the ranks, after a reduce.
        arrays: both as MPI sees them; None where they are on no CPU.
        is_shared: whether other ranks read the sum where it lies.
    """

    indices: tuple[int, ...]
    layout: SlotLayout
    own_n: Tensor
    sum_n: Tensor
    _own_views: Views
    _sum_views: Views
    arrays: tuple[Buffer, Buffer] | None = field(init=False)
    is_shared: bool = field(default=False, init=False)

    @classmethod
    def of(cls, indices: Sequence[int], like: Sequence[Tensor]) -> Bucket:
        """Make an empty bucket for the tensors `like`, dense, of one device and accumulation dtype."""
        dtype, device = accumulation_dtype(like[0].dtype), like[0].device
        layout = SlotLayout.of([real_numel(tensor) for tensor in like], dtype)
        own_n, sum_n = (torch.zeros(layout.total, dtype=dtype, device=device) for _ in range(2))
        return cls(tuple(indices), layout, own_n, sum_n, layout.views(own_n, like), layout.views(sum_n, like))

    def __post_init__(self) -> None:
        """Keep the arrays: to make them takes 0.6 us each, in every window."""
        self.arrays = (self.own_n.numpy(), self.sum_n.numpy()) if self.own_n.device.type == "cpu" else None

    def accumulate_(
        self, grads: Sequence[Tensor | None], weight: float, first: bool, nonfinite: Tensor | None
    ) -> None:
        """Add weight * gradient to each slot; the first batch of a window overwrites."""
        mine = [grads[index] for index in self.indices]
        scale_accumulate_(
            self.own_n, self.layout, mine, weight,
            accumulate=not first, nonfinite=nonfinite, views=self._own_views,
        )  # fmt: skip

    def move_own_(self, own_n: Tensor) -> None:
        """Accumulate in other memory from now on.

        Args:
            own_n: as long as `own_n`, whose place it takes.
        """
        own_n.copy_(self.own_n)
        self.own_n, self._own_views = own_n, self.layout.views(own_n, self._own_views)
        self.__post_init__()

    def place_sum(self, sum_n: Tensor, *, is_shared: bool) -> None:
        """Let the sum be in other memory from now on; what was summed is left behind.

        Args:
            sum_n: as long as `sum_n`, whose place it takes.
            is_shared: whether other ranks read it where it lies.
        """
        self.sum_n, self._sum_views = sum_n, self.layout.views(sum_n, self._sum_views)
        self.is_shared = is_shared
        self.__post_init__()

    def foresee_(self, grads: Sequence[Tensor | None], weight: float, first: bool) -> None:
        """Let `sum_n` hold what `own_n` will after `accumulate_`; `grads` are those that have slots here."""
        if not first:
            self.sum_n.copy_(self.own_n)
        scale_accumulate_(self.sum_n, self.layout, grads, weight, accumulate=not first, views=self._sum_views)

    def flag_nonfinite_(self, flag: Tensor, grads: Sequence[Tensor | None]) -> None:
        """Set `flag` if a gradient that has its slot here is inf or nan."""
        flag_nonfinite_(flag, [grads[index] for index in self.indices], self.layout)

    def clear_(self) -> None:
        """Forget what was accumulated."""
        self.own_n.zero_()

    def unpack_(self, grads: Sequence[Tensor | None], scale: float | Tensor) -> None:
        """Write scale * sum into each gradient that is not None."""
        mine = [grads[index] for index in self.indices]
        unpack_(mine, self.sum_n, self.layout, scale, keep=self.is_shared, views=self._sum_views)


def make_buckets(tensors: Sequence[Tensor], cap_bytes: int = CAP_BYTES) -> list[Bucket]:
    """Deal tensors into buckets, in order; one beyond the cap has a bucket of its own.

    Args:
        tensors: dense tensors of the parameters' shapes, strides, dtypes and devices.
        cap_bytes: size at which a bucket is closed.

    Returns:
        The buckets; every tensor has exactly one slot.
    """
    open_: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    closed: list[list[int]] = []
    filled: dict[tuple[torch.dtype, torch.device], int] = {}
    for index, tensor in enumerate(tensors):
        key = (accumulation_dtype(tensor.dtype), tensor.device)
        num_bytes = real_numel(tensor) * key[0].itemsize
        if key in open_ and filled[key] + num_bytes > cap_bytes:
            closed.append(open_.pop(key))
        if key not in open_:
            open_[key], filled[key] = [], 0
        open_[key].append(index)
        filled[key] += num_bytes
    return [Bucket.of(group, [tensors[i] for i in group]) for group in sorted([*closed, *open_.values()])]


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for double precision, float32 for the rest: fp16 sums would overflow and flush."""
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32


def real_numel(tensor: Tensor) -> int:
    """How many real numbers a tensor holds."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)
