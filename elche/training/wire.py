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

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from elche.kernels import cast_scale_, weighted_sum
from elche.training.transport import Transport

HEADER_BYTES = 16  # the power of two, as float32, and room to align what follows
SHARD_ALIGN = 8  # elements
EXPONENT = 0x7F80_0000  # of a float32's bits, those of its exponent: all set in inf and nan, none in zero
ONE, LEAST_UNIT = 0x3F80_0000, 0x0080_0000  # the bits of 1 and of the smallest normal power of two
TOP = 14 << 23  # what to take from the exponent of the largest element: float16 ends below 2^16


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
    """Sums float32 buckets of one length over the ranks in a wire type, where they are.

    On a GPU nothing waits for the device: the powers of two are made, sent and read there.
    """

    def __init__(self, transport: Transport, dtype: torch.dtype, like_n: Tensor) -> None:
        """Make room for this rank's messages, which stays as long as this does.

        Args:
            transport: between the ranks.
            dtype: the wire type, bfloat16 or float16.
            like_n: a bucket, for its length and device.
        """
        self._transport, self._dtype = transport, dtype
        n, size = like_n.numel(), transport.size
        shard = -(-n // (size * SHARD_ALIGN)) * SHARD_ALIGN
        self._parts = [slice(min(n, shard * rank), min(n, shard * (rank + 1))) for rank in range(size)]
        num_bytes = HEADER_BYTES + dtype.itemsize * shard
        room_wb = torch.zeros(size + 1, num_bytes, dtype=torch.uint8, device=like_n.device)
        self._sent, self._told = _Messages(room_wb[:size], dtype), _Messages(room_wb[size:], dtype)

    def all_reduce(self, own_n: Tensor, sum_n: Tensor, lost_n: Tensor | None = None) -> None:
        """Sum over the ranks; collective.

        Args:
            own_n: this rank's bucket; it stays as it is, unless it is `sum_n`.
            sum_n: becomes the sum, the same bits on every rank.
            lost_n: becomes what was rounded off here: of this rank's bucket, and of the sum in the shard
                that it has summed; None: nobody asks.
        """
        if not own_n.numel():
            return
        mine = self._parts[self._transport.rank]
        self._sent.write([own_n[part] for part in self._parts], _unit(own_n, self._dtype))
        got = _Messages(self._transport.all_to_all(self._sent.bytes_wb), self._dtype)
        summed_n = weighted_sum(got.rows_wn, got.units_w.contiguous())
        if lost_n is not None:
            torch.sub(own_n, self._sent.read(self._parts, torch.empty_like(own_n)), out=lost_n)
        self._told.write([summed_n], _unit(summed_n, self._dtype))
        heard = _Messages(self._transport.all_gather(self._told.bytes_wb[0]), self._dtype)
        heard.read(self._parts, sum_n)
        if lost_n is not None:
            lost_n[mine] += summed_n[: mine.stop - mine.start] - sum_n[mine]
            lost_n.nan_to_num_(0.0, 0.0, 0.0)  # inf and nan are never owed


class _Messages:
    """Rows of bytes: a power of two each, and elements of the wire type to be multiplied by it."""

    def __init__(self, bytes_wb: Tensor, dtype: torch.dtype) -> None:
        self.bytes_wb = bytes_wb
        self.units_w = bytes_wb[:, :4].view(torch.float32)[:, 0]
        self.rows_wn = bytes_wb[:, HEADER_BYTES:].view(dtype)

    def write(self, parts: list[Tensor], unit: Tensor) -> None:
        """Cast a part into each row, divided by `unit`."""
        self.units_w.copy_(unit)
        factor = unit.reciprocal()
        for row_n, part_n in zip(self.rows_wn, parts, strict=True):
            cast_scale_(row_n[: part_n.numel()], part_n, factor)

    def read(self, parts: list[slice], out_n: Tensor) -> Tensor:
        """Cast each row back into its part."""
        for unit, row_n, part in zip(self.units_w, self.rows_wn, parts, strict=True):
            cast_scale_(out_n[part], row_n[: part.stop - part.start], unit)
        return out_n


class Wire:
    """What one user's buckets travel on, with what it owes them."""

    def __init__(self, wire: WireFormat) -> None:
        """Owe nothing.

        Args:
            wire: its dtype is not None.
        """
        assert wire.dtype is not None
        self._dtype, self._error_feedback = wire.dtype, wire.error_feedback
        self._transport: Transport | None = None
        self._sums: dict[tuple[int, ...], WireSum] = {}  # by bucket, over this transport
        self._owed: dict[tuple[int, ...], Tensor] = {}  # by bucket, of the last committed window
        self._rounded: dict[tuple[int, ...], Tensor] = {}  # of the one under way

    def carries(self, bucket_n: Tensor) -> bool:
        """Return whether a bucket travels on it; double precision goes as it is."""
        return bucket_n.dtype is torch.float32

    def all_reduce(self, transport: Transport, bucket: tuple[int, ...], own_n: Tensor, sum_n: Tensor) -> None:
        """Sum a bucket over the ranks, and with it what is owed; collective.

        Args:
            transport: between the ranks.
            bucket: its indices.
            own_n: this rank's, float32, on the transport's side; it stays as it is, unless it is `sum_n`.
            sum_n: becomes the sum.
        """
        if transport != self._transport:
            self._transport, self._sums = transport, {}
        if bucket not in self._sums:
            self._sums[bucket] = WireSum(transport, self._dtype, own_n)
        if bucket in self._owed:  # perhaps from before NCCL was given up
            own_n = own_n + self._owed[bucket].to(own_n.device)
        if self._error_feedback:
            self._rounded[bucket] = torch.empty_like(own_n)
        self._sums[bucket].all_reduce(own_n, sum_n, self._rounded.get(bucket))

    def settle(self, *, is_used: bool) -> None:
        """Let what was rounded off be owed, where the sum is used; else what was owed is owed still.

        Args:
            is_used: whether it is.
        """
        self._owed, self._rounded = self._rounded if is_used else self._owed, {}

    def forget(self) -> None:
        """Owe nothing any more."""
        self._owed, self._rounded = {}, {}


def _unit(value_n: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the power of two to divide by; 1 for bfloat16, which ends where float32 does, and for inf.

    It is made of the bits of an exponent, which are the same on every device; as pow() would not be.
    """
    if dtype is not torch.float16:
        return torch.ones((), device=value_n.device)
    least, largest = value_n.aminmax()
    exponent = torch.maximum(-least, largest).view(torch.int32) & EXPONENT
    unit = (exponent - TOP).clamp_(min=LEAST_UNIT)
    return unit.masked_fill_(exponent == EXPONENT, ONE).view(torch.float32)
