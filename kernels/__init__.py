"""Gradients into buckets and back, one launch per bucket: Triton on CUDA tensors, plain torch on the CPU.

A bucket is a flat, contiguous float32 or float64 tensor in which a `SlotLayout` gives every tensor its slot.
Tensors are float16, bfloat16, float32, float64, or complex64 and complex128 as their real pairs, and dense in
memory: slot k holds the elements of tensor k in memory order. A bucket is made of zeros (`torch.zeros`);
the padding between its slots stays zero.

Legend: `_n`, elements of a bucket; `_wn`, of w shards of n elements each.

The functions of flat tensors (`cast_scale_` and what follows) take contiguous 1-d ones of any alignment.

On CUDA no call waits for the device, and all of it runs on the current stream: tensors may be freed as soon
as a call has returned, as with torch's own operations. What takes a layout is one launch, and its table of
addresses is uploaded again exactly when a tensor moved. CUDA graphs may capture every call: give weights as
tensors, for numbers are captured as they are, and run a batch with the same gradients before the capture.
Gradients that were elsewhere then are refused with a `UsageError`.

Nothing here imports triton before the first CUDA tensor. No file bears a function's name: importing it would
put the module in the function's place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elche.errors import ConfigError
from elche.kernels import foreach
from elche.kernels.flat import check_cast, check_no_momentum, check_same, check_shards
from elche.kernels.layout import SlotLayout, Views, dense_1d

__all__ = [
    "SlotLayout",
    "Views",
    "cast_scale_",
    "dense_1d",
    "drift",
    "flag_nonfinite_",
    "lerp_",
    "outer_step_",
    "scale_accumulate_",
    "unpack_",
    "weighted_sum",
]

LARGEST_WEIGHT = torch.finfo(torch.float32).max


def scale_accumulate_(
    bucket_n: Tensor,
    layout: SlotLayout,
    tensors: Sequence[Tensor | None],
    weight: float | Tensor,
    *,
    accumulate: bool,
    nonfinite: Tensor | None = None,
    views: Views | None = None,
) -> None:
    """Overwrite every slot, or add to it with `accumulate`: slot_k (+)= weight * tensor_k.

    Products are of the bucket's dtype. Weight 0 gives zeros, never 0 * inf. On CUDA nothing waits for the
    device, and the product is rounded before the sum; on the CPU it may be kept whole (FMA).

    Args:
        bucket_n: flat bucket, on the CPU or a GPU.
        layout: where its slots lie.
        tensors: one per slot, on the bucket's device and not in its memory; None, no gradient, counts as
            zeros.
        weight: a number within float32's, or a 0-d float32 or float64 tensor on the bucket's device.
        accumulate: whether to add to the slots instead of overwriting them.
        nonfinite: 1-element float32 tensor on the bucket's device; when it is not 0, the weight counts as 0.
        views: `layout.views(bucket_n, like=parameters)`, kept by the caller: spares the CPU path three
            quarters of its time on small tensors. CUDA has no use for it.

    Raises:
        ConfigError: the weight is a number beyond float32's, or bucket and tensors do not fit the layout.

    Example:
        >>> layout = SlotLayout.of([2, 1], torch.float32)
        >>> bucket_n = torch.zeros(layout.total)
        >>> tensors = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
        >>> scale_accumulate_(bucket_n, layout, tensors, 10.0, accumulate=False)
        >>> bucket_n
        tensor([10., 20.,  0.,  0., 30.,  0.,  0.,  0.])
    """
    if not isinstance(weight, Tensor) and not abs(weight) <= LARGEST_WEIGHT:
        raise ConfigError(f"weight: {weight} is not within float32's {LARGEST_WEIGHT:g}")
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
    keep: bool = False,
    views: Views | None = None,
) -> None:
    """Give every tensor its slot times one scale: tensor_k = cast(scale * slot_k), to nearest even.

    Args:
        tensors: one per slot, written in place; None is left out.
        bucket_n: flat bucket on the tensors' device; spent, unless it is kept: it may hold anything then.
        layout: where its slots lie.
        scale: a number, or a 0-d float32 or float64 tensor on the bucket's device.
        keep: whether to leave the bucket as it is, which takes longer for many small tensors on the CPU.
        views: as in `scale_accumulate_`, of this bucket.

    Raises:
        ConfigError: bucket and tensors do not fit the layout.
    """
    if bucket_n.is_cuda:
        from elche.kernels.unpack import launch

        launch(tensors, bucket_n, layout, scale)
    else:
        foreach.unpack_(tensors, bucket_n, layout, scale, keep=keep, views=views)


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


def cast_scale_(out_n: Tensor, in_n: Tensor, scale: float | Tensor) -> None:
    """Cast a bucket to its wire dtype, or back: out = cast(scale * float32(in)), to nearest even.

    Args:
        out_n: flat bfloat16 or float16 tensor, the wire; or float32, the bucket.
        in_n: the other of the two, of the same length and device.
        scale: a number, or a 0-d tensor on the device. What is beyond float16 becomes inf.

    Example:
        >>> wire_n, bucket_n = torch.zeros(2, dtype=torch.float16), torch.tensor([3.0, 60000.0])
        >>> cast_scale_(wire_n, bucket_n, 0.5)
        >>> wire_n
        tensor([1.5000e+00, 3.0000e+04], dtype=torch.float16)
    """
    check_cast(out_n, in_n)
    if out_n.is_cuda:
        from elche.kernels.cast_scale import launch

        launch(out_n, in_n, scale)
    else:
        foreach.cast_scale_(out_n, in_n, scale)


def weighted_sum(shards_wn: Tensor, weights_w: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Sum shards in float32 and in their order: out = sum over w of weights[w] * float32(shards[w]).

    Weight 0 leaves a shard out, whatever it holds. On CUDA products are rounded before the sums.

    Args:
        shards_wn: float32, bfloat16 or float16, one shard a row; rows may lie apart.
        weights_w: float32, one per shard, on the same device.
        out: float32 tensor of n elements to write to, not in the shards' memory; None makes one.

    Returns:
        The sum, float32.

    Raises:
        ConfigError: shards, weights and result do not fit each other, or the result lies among the shards.

    Example:
        >>> shards_wn = torch.tensor([[30000.0, 1e-7]] * 4, dtype=torch.float16)
        >>> weighted_sum(shards_wn, torch.ones(4))[0]
        tensor(120000.)
    """
    if out is None:
        out = torch.empty(shards_wn.shape[-1:], dtype=torch.float32, device=shards_wn.device)
    check_shards(shards_wn, weights_w, out)
    if out.is_cuda:
        from elche.kernels.sum_shards import launch

        launch(out, shards_wn, weights_w)
    else:
        foreach.weighted_sum(out, shards_wn, weights_w)
    return out


def drift(pre_n: Tensor, post_n: Tensor) -> Tensor:
    """Measure how far an average moved a replica: [||pre||, ||post||, ||pre - post||], in one pass.

    The order of the sums depends on the length alone: equal tensors give equal bits. Squares are of the
    tensors' dtype, so float32 elements count from 1e-18 and overflow from 1e16; the sums beyond a chunk are
    of float64.

    Args:
        pre_n: flat float32 or float64 tensor.
        post_n: another one of its length, dtype and device.

    Returns:
        Three elements, float64, on the tensors' device.

    Example:
        >>> drift(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 0.0]))
        tensor([5., 3., 4.], dtype=torch.float64)
    """
    check_same(pre_n=pre_n, post_n=post_n)
    if pre_n.is_cuda:
        from elche.kernels.drift_norms import launch

        return launch(pre_n, post_n)
    return foreach.drift(pre_n, post_n)


def outer_step_(
    global_n: Tensor,
    consensus_n: Tensor,
    lr: float | Tensor,
    *,
    momentum: float | Tensor = 0.0,
    velocity_n: Tensor | None = None,
    nesterov: bool = False,
) -> None:
    """Step an outer optimizer on the pseudo-gradient g = global - consensus, in place.

    Without velocity global -= lr * g: plain SGD, lr 1 gives the consensus up to rounding. With it
    v = momentum * v + g, and global -= lr * v, or lr * (momentum * v + g) with `nesterov`.

    Args:
        global_n: flat parameters after the previous average, float32 or float64; becomes the next ones.
        consensus_n: average of the replicas now.
        lr: outer learning rate, a number or a 0-d tensor on the device.
        momentum: a number or a 0-d tensor on the device; without velocity it has no meaning.
        velocity_n: momentum buffer, zeros before the first step.
        nesterov: whether to look ahead; needs a velocity.

    Raises:
        ConfigError: the tensors do not fit each other, or momentum or Nesterov came without a velocity.

    Example:
        >>> global_n, velocity_n = torch.tensor([10.0]), torch.tensor([2.0])
        >>> outer_step_(global_n, torch.tensor([6.0]), 0.5, momentum=0.5, velocity_n=velocity_n)
        >>> global_n, velocity_n
        (tensor([7.5000]), tensor([5.]))
    """
    if velocity_n is None:
        check_no_momentum(momentum, nesterov)
        check_same(global_n=global_n, consensus_n=consensus_n)
    else:
        check_same(global_n=global_n, consensus_n=consensus_n, velocity_n=velocity_n)
    if global_n.is_cuda:
        from elche.kernels.outer_step import launch

        launch(global_n, consensus_n, lr, momentum, velocity_n, nesterov=nesterov)
    else:
        foreach.outer_step_(global_n, consensus_n, lr, momentum, velocity_n, nesterov=nesterov)


def lerp_(x_n: Tensor, y_n: Tensor, weight: float | Tensor) -> None:
    """Draw x towards y: x = (1 - weight) * x + weight * y, exactly x at weight 0 and exactly y at 1.

    Args:
        x_n: flat float32 or float64 tensor, written in place.
        y_n: another one of its length, dtype and device.
        weight: a number from 0 to 1, or a 0-d tensor on the device.

    Raises:
        ConfigError: the tensors do not fit each other, or the weight is a number beyond 0 to 1.

    Example:
        >>> x_n = torch.tensor([1.0, 2.0])
        >>> lerp_(x_n, torch.tensor([3.0, 2.0]), 0.25)
        >>> x_n
        tensor([1.5000, 2.0000])
    """
    check_same(x_n=x_n, y_n=y_n)
    if not isinstance(weight, Tensor) and not 0.0 <= weight <= 1.0:
        raise ConfigError(f"weight: {weight} is not from 0 to 1")
    if x_n.is_cuda:
        from elche.kernels.lerp import launch

        launch(x_n, y_n, weight)
    else:
        foreach.lerp_(x_n, y_n, weight)
