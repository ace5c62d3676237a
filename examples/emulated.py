"""Emulated devices: a rig of unequal speeds on one machine. They sleep; everything else is real."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

LATEST_SECONDS = 0.01  # a process that wakes later was stopped, and its device with it


@dataclass
class EmulatedDevice:
    """A device on which a batch takes `len(batch) * seconds_per_sample`, by sleeping for what is left of it.

    A batch begins with the model's forward pass in training mode and ends when its backward pass has
    filled the last gradient. Every parameter must take part in the loss.

    Example:
        >>> device = EmulatedDevice(seconds_per_sample=0.005)
        >>> device.attach(model)                # a batch of 8 now takes 40 ms, forward and backward
        >>> device.seconds_per_sample *= 2      # it slows down, in the middle of a run

    Attributes:
        seconds_per_sample: the time one sample takes; may be changed between batches.
    """

    seconds_per_sample: float

    def __post_init__(self) -> None:
        """Begin with nothing to catch up."""
        self._due = self._late = 0.0
        self._num_missing = 0

    def attach(self, model: nn.Module) -> None:
        """Run `model` on this device from now on."""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

        def begin(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if module.training and torch.is_grad_enabled():
                self._num_missing = len(parameters)
                self._due = time.perf_counter() + len(inputs[0]) * self.seconds_per_sample - self._late

        def end(_: torch.Tensor) -> None:
            self._num_missing -= 1
            if self._num_missing == 0:
                self._sleep()

        model.register_forward_pre_hook(begin)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(end)

    def _sleep(self) -> None:
        # A sleep ends 0.1 ms late, or more where ranks share a core. That is the host's doing, not the
        # device's: the next batch is due so much earlier, or fast devices would seem slower than they are.
        rest = self._due - time.perf_counter()
        if rest > 0:
            time.sleep(rest)
            self._late = min(time.perf_counter() - self._due, LATEST_SECONDS)
        else:
            self._late = 0.0


def parser() -> argparse.ArgumentParser:
    """Return a command line with `--speeds` and `--batch-seconds`; scripts add their own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--speeds", help="emulate a rig: relative speeds, one for each rank, such as 1,1,2,4")
    parser.add_argument("--batch-seconds", type=float, default=0.04, help="time of a batch at speed 1")
    return parser


def slow_down(model: nn.Module, args: argparse.Namespace, *, batch_size: int, rank: int, size: int) -> None:
    """Run `model` on the device that `--speeds` asks for on this rank, if it asks for one."""
    if args.speeds is not None:
        speed = parse_speeds(args.speeds, size)[rank]
        EmulatedDevice(args.batch_seconds / batch_size / speed).attach(model)


def parse_speeds(text: str, size: int) -> list[float]:
    """Return the relative speeds in `text`, such as "1,1,2,4", one for each of `size` ranks.

    Args:
        text: numbers above 0 with commas between them.
        size: how many there must be.

    Returns:
        The speeds in rank order.

    Raises:
        ValueError: a number is missing, too many or not above 0.
    """
    speeds = [float(part) for part in text.split(",")]
    if len(speeds) != size:
        raise ValueError(f"--speeds must name {size} speeds, one for each rank; {text!r} names {len(speeds)}")
    if min(speeds) <= 0:
        raise ValueError(f"--speeds must be above 0, got {text!r}")
    return speeds


def describe(args: argparse.Namespace, size: int) -> str:
    """Return the rig in a few words, for a title."""
    if args.speeds is None:
        return f"{size} rank{'s' * (size > 1)}"
    return f"{size} ranks, emulated speeds {args.speeds.replace(',', ':')} (they sleep, real ones do not)"
