"""PyTorch's GradScaler over windows: one decision a window, the same on all ranks.

Scripts call `scaler.step(optimizer)` and `scaler.update()` for every batch. Between windows that must not
move the scale: ranks do different numbers of batches and would drift apart. At a window's end it moves once,
by whether any batch of any rank had inf or nan. PyTorch gives no other hold on a scaler's step than its
state, so this file, and no other, reaches into it.
"""

from __future__ import annotations

import warnings

import torch
from torch.amp.grad_scaler import GradScaler, OptState


def expect_scaler() -> None:
    """Silence PyTorch's notice that it passes the scaler to `step`: the way by which one is known here."""
    warnings.filterwarnings("ignore", "GradScaler is going to stop passing itself", FutureWarning)


def unscale(scaler: GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """Divide the gradients by the scale, unless the script did (`scaler.unscale_`)."""
    if scaler._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY:
        scaler.unscale_(optimizer)


def settle(scaler: GradScaler, optimizer: torch.optim.Optimizer, windows_skipped: list[int]) -> None:
    """Prepare the script's `scaler.update()`, which comes next.

    Args:
        scaler: the one that called.
        optimizer: the one it stepped.
        windows_skipped: for each window that closed since the last call, how many batches of all ranks were
            not finite; emptied.
    """
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    for skipped in windows_skipped[:-1]:  # closed in the loader: this rank had no batch, no update() came
        _update(scaler, bool(skipped))
    for flag in found.values():
        flag.fill_(float(bool(windows_skipped and windows_skipped[-1])))
    if not windows_skipped:
        scaler._growth_tracker.sub_(1)  # type: ignore[union-attr] # update() will add it again
    windows_skipped.clear()


def _update(scaler: GradScaler, skipped: bool) -> None:
    scale, tracker = scaler._scale, scaler._growth_tracker
    assert scale is not None  # both are there after the scaler's first scale()
    assert tracker is not None
    torch._amp_update_scale_(
        scale,
        tracker,
        torch.full_like(scale, float(skipped)),
        scaler.get_growth_factor(),
        scaler.get_backoff_factor(),
        scaler.get_growth_interval(),
    )
