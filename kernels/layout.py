"""Where each tensor lies in a flat bucket, and flat aliases of tensors that are dense in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from elche.errors import ConfigError

if TYPE_CHECKING:
    from elche.kernels.tables import Tables

SLOT_ALIGN_BYTES = 16  # the widest load of a GPU thread: every slot starts on such a boundary
KINDS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # of what a slot's tensor may be
REALS = {torch.complex64: torch.float32, torch.complex128: torch.float64}  # or of pairs of these


@dataclass(frozen=True)
class SlotLayout:
    """Slots of a bucket, one after the other, each padded to a multiple of 16 bytes.

    A float32 bucket for tensors of 3, 0 and 5 elements has its slots at 0, 4 and 4, and 12 elements:

    >>> SlotLayout.of([3, 0, 5], torch.float32)
    SlotLayout(numels=(3, 0, 5), offsets=(0, 4, 4), total=12, dtype=torch.float32)

    Attributes:
        numels: elements of each slot without its padding, counted in bucket elements (2 per complex one).
        offsets: where each slot starts, in bucket elements.
        total: elements of the whole bucket, padding included.
        dtype: the bucket's.
        tables: what the CUDA launches have uploaded for this layout, by device and stream.
        captured: those of them that CUDA graphs read.
    """

    numels: tuple[int, ...]
    offsets: tuple[int, ...]
    total: int
    dtype: torch.dtype
    tables: dict[tuple[torch.device, int], Tables] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    captured: list[Tables] = field(default_factory=list, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, numels: Sequence[int], dtype: torch.dtype) -> SlotLayout:
        """Lay out slots of `numels` elements in a bucket of `dtype`.

        Args:
            numels: elements of each slot, 2 per complex one, at least 0.
            dtype: the bucket's, float32 or float64.

        Returns:
            The layout.

        Raises:
            ConfigError: a count is negative or the dtype is another.
        """
        if dtype not in (torch.float32, torch.float64):
            raise ConfigError(f"a bucket is float32 or float64, not {dtype}")
        if any(numel < 0 for numel in numels):
            raise ConfigError(f"a slot holds at least 0 elements, not {min(numels)}")
        group = SLOT_ALIGN_BYTES // dtype.itemsize
        ends = list(accumulate((-(-numel // group) * group for numel in numels), initial=0))
        return cls(tuple(numels), tuple(ends[:-1]), ends[-1], dtype)

    def views(self, bucket_n: Tensor, like: Sequence[Tensor] | None = None) -> Views:
        """Alias each slot of `bucket_n`, without its padding.

        Args:
            bucket_n: the bucket, `total` elements.
            like: dense tensors, one per slot, whose shape and strides the aliases take (a complex tensor's as
                its real pair, with a last dimension of 2); None makes flat ones.

        Returns:
            One alias per slot.

        Raises:
            ConfigError: the bucket or `like` does not fit the layout.
        """
        check_bucket(bucket_n, self)
        if like is None:
            slots = zip(self.offsets, self.numels, strict=True)
            return Views(bucket_n[at : at + numel] for at, numel in slots)
        numels = tuple(dense_1d(tensor).numel() for tensor in like)
        if numels != self.numels:
            raise ConfigError(f"tensors of {numels} real elements do not fit slots of {self.numels}")
        base = bucket_n.storage_offset()
        return Views(
            bucket_n.as_strided(real.shape, real.stride(), base + at)
            for real, at in zip(map(real_pair, like), self.offsets, strict=True)
        )


class Views(list[Tensor]):
    """Aliases of the slots of a bucket, and what would take as long as the work to ask of them in every call.

    Attributes:
        numels: elements of each.
        contiguous: whether each is: its elements lie in memory in their own order.
    """

    numels: tuple[int, ...]
    contiguous: bool

    def __init__(self, views: Iterable[Tensor]) -> None:
        """Keep the aliases, one per slot."""
        super().__init__(views)
        self.numels = tuple(view.numel() for view in self)
        self.contiguous = all(view.is_contiguous() for view in self)


def check_bucket(bucket_n: Tensor, layout: SlotLayout) -> None:
    """Refuse a bucket that is not flat, contiguous, and of the layout's length and dtype."""
    found = (tuple(bucket_n.shape), bucket_n.dtype)
    if found != ((layout.total,), layout.dtype) or not bucket_n.is_contiguous():
        raise ConfigError(
            f"this layout needs a contiguous bucket of shape ({layout.total},) and {layout.dtype}, "
            f"not of {found[0]} and {found[1]} with strides {bucket_n.stride()}"
        )


def check_count(tensors: Sequence[Tensor | None], layout: SlotLayout) -> None:
    """Refuse more or fewer tensors than there are slots."""
    if len(tensors) != len(layout.numels):
        raise ConfigError(
            f"this layout needs {len(layout.numels)} tensors, None among them, not {len(tensors)}"
        )


def check_dtypes(dtypes: Collection[torch.dtype]) -> None:
    """Refuse dtypes that no kernel reads."""
    for dtype in dtypes:
        if dtype not in KINDS and dtype not in REALS:
            raise ConfigError(f"{dtype} is none of {(*KINDS, *REALS)}")


def misfit(numel: int, device: torch.device, tensor: Tensor) -> ConfigError:
    """Say that a tensor is not what a slot of `numel` real elements on `device` needs."""
    return ConfigError(
        f"a slot of {numel} elements on {device} does not fit {tuple(tensor.shape)} of {tensor.dtype} on "
        f"{tensor.device}"
    )


def real_pair(tensor: Tensor) -> Tensor:
    """Alias a complex tensor as its real pair (a last dimension of 2); return any other as it is."""
    if not tensor.is_complex():
        return tensor
    check_resolved(tensor)
    return torch.view_as_real(tensor)


def dense_1d(tensor: Tensor) -> Tensor:
    """Alias a dense tensor as a flat one, in memory order; a complex one as its real pairs.

    The transpose of [[1, 2], [3, 4]] gives [1, 2, 3, 4]: what lies in memory, whatever the strides say.

    Args:
        tensor: fills its memory without gap or overlap: contiguous, channels_last, transposed, ...

    Returns:
        A 1-d contiguous alias.

    Raises:
        ConfigError: the tensor has gaps or overlaps (such as every second column, or an expanded one), or is
            a lazy conjugate.
    """
    check_dense(tensor)
    return real_pair(tensor.as_strided((tensor.numel(),), (1,))).view(-1)


def check_dense(tensor: Tensor) -> None:
    """Refuse a tensor whose memory has gaps or overlaps, or holds other values than it stands for."""
    check_resolved(tensor)
    if tensor.is_contiguous() or tensor.numel() == 0:
        return
    numel = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and stride != numel:
            shape = tuple(tensor.shape)
            raise ConfigError(
                f"a tensor of shape {shape} with strides {tensor.stride()} is not dense in memory"
            )
        numel *= length


def check_resolved(tensor: Tensor) -> None:
    """Refuse a lazy conjugate or negative: `backward` leaves such a `grad` on complex parameters at times."""
    if tensor.is_conj() or tensor.is_neg():
        raise ConfigError("a lazily conjugated or negated tensor needs resolve_conj() or resolve_neg() first")
