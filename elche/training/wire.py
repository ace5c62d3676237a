"""Sums of buckets in two bytes an element: rounded on their way, summed in float32.

1. Rank w casts its float32 bucket to the wire type. float16 alone could not hold the sum of four 30,000 and
   would flush 1e-8: the bucket is divided first by a power of two, s_w, that brings its largest element near
   the top.
2. All to all: rank r gets shard r of every rank's bucket, with s_w.
3. It sums them in float32, in rank order: sum over w of s_w * shard_w.
4. The sum is cast in the same way and all-gathered. All ranks decode the same bytes and get the same bits.

Legend: `_n`, elements of a bucket; `_wb`, a message of bytes for each rank, or from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from elche.comm.base import Comm
from elche.kernels import cast_scale_, weighted_sum

HEADER_BYTES = 16  # the power of two, as float32, and room to align what follows
SHARD_ALIGN = 8  # elements
TOP_EXPONENT = 15  # float16 ends below 2^16
LEAST_EXPONENT = -126  # of the smallest normal float32


@dataclass(frozen=True)
class WireFormat:
    """What gradients travel as; `elche.Compression` has those there are.

    Attributes:
        name: of the wire type.
        dtype: the wire type; None: as they are.
        error_feedback: whether what is rounded off is added to the next window's sum.
    """

    name: str
    dtype: torch.dtype | None
    error_feedback: bool = False

    def __str__(self) -> str:
        """Return its name, as it stands in settings."""
        return self.name + " with error feedback" * self.error_feedback

    def with_error_feedback(self) -> WireFormat:
        """Return this format, with what it rounds off owed to the next window."""
        return replace(self, error_feedback=self.dtype is not None)


class Compression:
    """How gradients travel, for `DistributedOptimizer(compression=...)`; sums are float32 in any case."""

    none = WireFormat("none", None)
    bf16 = WireFormat("bf16", torch.bfloat16)
    fp16 = WireFormat("fp16", torch.float16)


class WireSum:
    """Sums float32 buckets over the ranks in a wire type; on host memory."""

    def __init__(self, comm: Comm, dtype: torch.dtype) -> None:
        """Sum over `comm`.

        Args:
            comm: the ranks.
            dtype: the wire type, bfloat16 or float16.
        """
        self._comm, self._dtype = comm, dtype

    def all_reduce(self, own_n: Tensor, sum_n: Tensor, lost_n: Tensor | None = None) -> None:
        """Sum over the ranks; collective.

        Args:
            own_n: this rank's bucket, float32 on the CPU; it stays as it is.
            sum_n: becomes the sum, the same bits on every rank.
            lost_n: becomes what was rounded off here: of this rank's bucket, and of the sum in the shard
                that it has summed; None: nobody asks.
        """
        comm, total = self._comm, own_n.numel()
        shard = -(-total // (comm.size * SHARD_ALIGN)) * SHARD_ALIGN
        parts = [slice(min(total, shard * rank), min(total, shard * (rank + 1))) for rank in range(comm.size)]
        sent_wb = np.zeros((comm.size, HEADER_BYTES + 2 * shard), np.uint8)
        self._write(sent_wb, [own_n[part] for part in parts], _unit(own_n, self._dtype))
        units_w, shards_wn = self._open(comm.all_to_all(sent_wb))
        summed_n = weighted_sum(shards_wn, units_w)
        told_wb = np.zeros((1, HEADER_BYTES + 2 * shard), np.uint8)
        self._write(told_wb, [summed_n], _unit(summed_n, self._dtype))
        self._read_all(comm.all_gather(told_wb[0]), parts, sum_n)
        if lost_n is not None:
            mine = parts[comm.rank]
            torch.sub(own_n, self._read_all(sent_wb, parts, torch.empty_like(own_n)), out=lost_n)
            lost_n[mine] += summed_n[: mine.stop - mine.start] - sum_n[mine]
            lost_n[~lost_n.isfinite()] = 0.0

    def _open(self, messages_wb: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the power of two and the elements of each message, without a copy of these."""
        bytes_wb = torch.from_numpy(messages_wb)
        units_w = bytes_wb[:, :4].contiguous().view(torch.float32)[:, 0]
        return units_w, bytes_wb[:, HEADER_BYTES:].view(self._dtype)

    def _write(self, messages_wb: np.ndarray, parts: list[Tensor], unit: float) -> None:
        messages_wb[:, :4] = np.frombuffer(np.float32(unit).tobytes(), np.uint8)
        _, rows_wn = self._open(messages_wb)
        for row_n, part_n in zip(rows_wn, parts, strict=True):
            cast_scale_(row_n[: part_n.numel()], part_n, 1.0 / unit)

    def _read_all(self, messages_wb: np.ndarray, parts: list[slice], out_n: Tensor) -> Tensor:
        units_w, rows_wn = self._open(messages_wb)
        for unit, row_n, part in zip(units_w.tolist(), rows_wn, parts, strict=True):
            cast_scale_(out_n[part], row_n[: part.stop - part.start], unit)
        return out_n


class Wire:
    """What one user's float32 buckets travel on, with what it owes them."""

    def __init__(self, wire: WireFormat) -> None:
        """Owe nothing.

        Args:
            wire: its dtype is not None.
        """
        self._wire = wire
        self._owed: dict[int, Tensor] = {}  # by bucket, of the last committed window
        self._rounded: dict[int, Tensor] = {}  # of the one under way

    def all_reduce(self, comm: Comm, bucket: int, own_n: Tensor, sum_n: Tensor) -> None:
        """Sum a bucket over the ranks, and with it what is owed; collective.

        Args:
            comm: the ranks.
            bucket: which it is.
            own_n: this rank's, float32 on the CPU; it stays as it is.
            sum_n: becomes the sum.
        """
        assert self._wire.dtype is not None
        if bucket in self._owed:
            own_n = own_n + self._owed[bucket]
        if self._wire.error_feedback:
            self._rounded[bucket] = torch.empty_like(own_n)
        WireSum(comm, self._wire.dtype).all_reduce(own_n, sum_n, self._rounded.get(bucket))

    def settle(self) -> None:
        """Let what was rounded off be owed: the window counts."""
        self._owed, self._rounded = self._rounded, {}


def _unit(value_n: Tensor, dtype: torch.dtype) -> float:
    """Return the power of two to divide by; 1 for bfloat16, which ends where float32 does, and for inf."""
    largest = float(value_n.abs().max()) if value_n.numel() and dtype is torch.float16 else 0.0
    if largest == 0.0 or not math.isfinite(largest):
        return 1.0
    return 2.0 ** max(math.frexp(largest)[1] - TOP_EXPONENT, LEAST_EXPONENT)
