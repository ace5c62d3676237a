"""Gradients into buckets and back, one launch per bucket: Triton on CUDA tensors, plain torch on the CPU.

A bucket is a flat, contiguous float32 or float64 tensor in which a `SlotLayout` gives every tensor its slot.
Tensors are float16, bfloat16, float32, float64, or complex64 and complex128 as their real pairs, and dense in
memory: slot k holds the elements of tensor k in memory order. A bucket is made of zeros (`torch.zeros`);
the padding between its slots stays zero.

Legend: `_n`, elements of a bucket.

Nothing here imports triton before the first CUDA tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from elche.kernels import foreach
from elche.kernels.layout import SlotLayout, dense_1d

__all__ = ["SlotLayout", "dense_1d", "flag_nonfinite_", "scale_accumulate_", "unpack_"]


def scale_accumulate_(
    bucket_n: Tensor,
    layout: SlotLayout,
    tensors: Sequence[Tensor | None],
    weight: float | Tensor,
    *,
    accumulate: bool,
    nonfinite: Tensor | None = None,
    views: Sequence[Tensor] | None = None,
) -> None:
    """Overwrite every slot, or add to it with `accumulate`: slot_k (+)= weight * tensor_k.

    Products are of the bucket's dtype. Weight 0 gives zeros, never 0 * inf. On CUDA nothing waits for the
    device, and the product is rounded before the sum; on the CPU it may be kept whole (FMA).

    Args:
        bucket_n: flat bucket, on the CPU or a GPU.
        layout: where its slots lie.
        tensors: one per slot, on the bucket's device; None, no gradient, counts as zeros.
        weight: a finite number, or a 0-d float32 or float64 tensor on the bucket's device.
        accumulate: whether to add to the slots instead of overwriting them.
        nonfinite: 1-element float32 tensor on the bucket's device; when it is not 0, the weight counts as 0.
        views: `layout.views(bucket_n, like=parameters)`, kept by the caller: spares the CPU path three
            quarters of its time on small tensors. CUDA has no use for it.

    Example:
        >>> layout = SlotLayout.of([2, 1], torch.float32)
        >>> bucket_n = torch.zeros(layout.total)
        >>> tensors = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
        >>> scale_accumulate_(bucket_n, layout, tensors, 10.0, accumulate=False)
        >>> bucket_n
        tensor([10., 20.,  0.,  0., 30.,  0.,  0.,  0.])
    """
    if bucket_n.is_cuda:
        from elche.kernels.scale_accumulate import launch

        launch(bucket_n, layout, tensors, weight, accumulate=accumulate, nonfinite=nonfinite)
    else:
        foreach.scale_accumulate_(
            bucket_n, layout, tensors, weight, accumulate=accumulate, nonfinite=nonfinite, views=views
        )


def unpack_(
    tensors: Sequence[Tensor | None],
    bucket_n: Tensor,
    layout: SlotLayout,
    scale: float | Tensor,
    *,
    views: Sequence[Tensor] | None = None,
) -> None:
    """Give every tensor its slot times one scale: tensor_k = cast(scale * slot_k), to nearest even.

    Args:
        tensors: one per slot, written in place; None is left out.
        bucket_n: flat bucket on the tensors' device; spent: it may hold anything afterwards.
        layout: where its slots lie.
        scale: a number, or a 0-d float32 or float64 tensor on the bucket's device.
        views: as in `scale_accumulate_`, of this bucket.
    """
    if bucket_n.is_cuda:
        from elche.kernels.unpack import launch

        launch(tensors, bucket_n, layout, scale)
    else:
        foreach.unpack_(tensors, bucket_n, layout, scale, views=views)


def flag_nonfinite_(flag: Tensor, tensors: Sequence[Tensor | None], layout: SlotLayout | None = None) -> None:
    """Set `flag` to 1 if any element of any tensor is inf or nan; else leave it as it is.

    Args:
        flag: 1-element float32 tensor on the tensors' device.
        tensors: dense tensors; None is left out. The CPU path may write finite elements back as they are.
        layout: the tensors' own; on CUDA it keeps their tables from call to call.
    """
    if flag.is_cuda:
        from elche.kernels.nonfinite import launch

        launch(flag, tensors, layout)
    else:
        foreach.flag_nonfinite_(flag, tensors)
