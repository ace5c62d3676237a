"""What the functions of flat tensors ask of them, on every device."""

from __future__ import annotations

import torch
from torch import Tensor

from elche.errors import ConfigError

FLOATS = (torch.float32, torch.float64)
WIRES = (torch.bfloat16, torch.float16)


def check_flat(dtypes: tuple[torch.dtype, ...], **tensors: Tensor) -> None:
    """Refuse tensors that are not flat, contiguous, of one of `dtypes`, and of one length and device."""
    places = {(tensor.numel(), tensor.device) for tensor in tensors.values()}
    for name, tensor in tensors.items():
        if tensor.dim() != 1 or not tensor.is_contiguous() or tensor.dtype not in dtypes or len(places) != 1:
            found = ", ".join(
                f"{key} {tuple(one.shape)} {one.dtype} on {one.device}" for key, one in tensors.items()
            )
            raise ConfigError(
                f"{name}: all of them must be flat and contiguous, of one length, on one device and of one "
                f"of {dtypes}; they are {found}"
            )


def check_same(**tensors: Tensor) -> None:
    """Refuse flat tensors that are not all float32 or all float64."""
    check_flat(FLOATS, **tensors)
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    if len(set(dtypes.values())) > 1:
        raise ConfigError(f"all must be of one dtype, not {dtypes}")


def check_cast(out_n: Tensor, in_n: Tensor) -> None:
    """Refuse all but float32 to a wire dtype, and a wire dtype to float32."""
    check_flat((torch.float32, *WIRES), out_n=out_n, in_n=in_n)
    if [out_n.dtype, in_n.dtype].count(torch.float32) != 1:
        raise ConfigError(
            f"one of the two is float32 and the other one of {WIRES}, not {out_n.dtype} and {in_n.dtype}"
        )


def check_shards(shards_wn: Tensor, weights_w: Tensor, out_n: Tensor) -> None:
    """Refuse shards without unit stride, and weights or a result that do not fit them."""
    if shards_wn.dim() != 2 or (shards_wn.shape[1] > 1 and shards_wn.stride(1) != 1):
        raise ConfigError(f"shards are rows, dense each, not {tuple(shards_wn.shape)} {shards_wn.stride()}")
    if shards_wn.dtype not in (torch.float32, *WIRES):
        raise ConfigError(f"shards are float32 or one of {WIRES}, not {shards_wn.dtype}")
    check_flat((torch.float32,), out_n=out_n)
    check_flat((torch.float32,), weights_w=weights_w)
    fitting = (weights_w.numel(), out_n.numel()) == tuple(shards_wn.shape)
    if not fitting or not shards_wn.device == weights_w.device == out_n.device:
        raise ConfigError(
            f"{tuple(shards_wn.shape)} shards on {shards_wn.device} need as many weights as shards and a "
            f"result of their length there, not {weights_w.numel()} on {weights_w.device} and "
            f"{out_n.numel()} on {out_n.device}"
        )
    first, last = shards_wn.data_ptr(), shards_wn[-1:, -1:].data_ptr()
    if out_n.numel() and first - out_n.nbytes < out_n.data_ptr() <= last:
        raise ConfigError("the result would overwrite shards before they are read: it lies among them")


def check_no_momentum(momentum: float | Tensor, nesterov: bool) -> None:
    """Refuse a momentum that would have no effect."""
    if isinstance(momentum, Tensor) or momentum != 0.0 or nesterov:
        raise ConfigError(f"momentum {momentum} and nesterov {nesterov} need a velocity_n")
