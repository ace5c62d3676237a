"""Settings: `Cadence`, what a training script asks for, and the shell: what `Environment` asks for.

The only file that reads `os.environ`. An argument wins over a variable, a variable over the default.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from elche.environment import Environment, parse_environment
from elche.errors import ConfigError, require

__all__ = ["Cadence", "Environment", "read_environment", "variables"]

CHOICES = {
    "policy": ("cadence", "sync", "async"),
    "average": ("gradients", "parameters"),
    "nonfinite": ("skip", "raise", "keep"),
    "lr_scaling": ("none", "linear", "sqrt"),
}
GUARDS = ("trend", "msf", "none")
DEFAULT_ANCHOR = {"gradients": 2, "parameters": 10}


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """How long windows are, who does how much of them and what is averaged at their end.

    Refused by name until they are built: policy "async", average "parameters" and what only it uses,
    partition_ratios, guards other than "none", overlap.

    Example:
        >>> Cadence(anchor=4).max_anchor_batches
        4
        >>> Cadence(policy="sync").anchor_batches
        1

    Attributes:
        policy: "cadence" (work by measured speed) or "sync" (`anchor` batches for every rank).
        average: "gradients", exact large-batch SGD on the window.
        anchor: batches of the slowest slot in a window; None: 2, with "sync" 1.
        min_anchor: smallest anchor; None: `anchor`.
        max_anchor: largest anchor the controller may grow to; None: `anchor`, so that the samples per
            update never change behind the user's back.
        overhead_target: share of a window's time that reducing may take before the anchor grows.
        max_batch_diff: most batches by which a slot's share may change from one window to the next.
        max_overshoot: batches a rank may run past the window, policy "async" only.
        speed_ratio: (slow slot, ratio), a first guess: all others are `ratio` times faster.
        partition_ratios: fixed shares by slot.
        guard: "none" with gradient averaging.
        meta_controller: let cliffs of the learning rate shorten windows; acts where the anchor may move.
        relax_up: let calm windows lengthen the anchor by one, up to `max_anchor`.
        gamma: exponent of the mass of a rank's steps, parameter averaging only.
        outer: outer optimizer, parameter averaging only.
        easgd_alpha: blend factor, parameter averaging only.
        max_grad_norm: clip the averaged gradient to this 2-norm, over all parameters.
        nonfinite: what a batch with inf or nan in its gradients does: "skip" it (weight 0, counted),
            "raise" on all ranks, or "keep" it. With a GradScaler it is always skipped.
        lr_scaling: learning rate as a function of the samples per update over `lr_reference_samples`.
        lr_reference_samples: samples per update at which the given learning rate holds unscaled.
        weight: function of the collated batch that gives its weight, such as its tokens; None: samples.
        sync_buffers: average buffers, such as BatchNorm's, at the window's end.
        resync_every: windows between two comparisons of parameters and optimizer state; 0: never.
        overlap: reduce while the next window computes.
    """

    policy: str = "cadence"
    average: str = "gradients"
    anchor: int | None = None
    min_anchor: int | None = None
    max_anchor: int | None = None
    overhead_target: float = 0.05
    max_batch_diff: int | None = None
    max_overshoot: int = 3
    speed_ratio: tuple[int, float] | None = None
    partition_ratios: tuple[float, ...] | None = None
    guard: str | object | None = None
    meta_controller: bool = True
    relax_up: bool = False
    gamma: float = 1.0
    outer: object | None = None
    easgd_alpha: float | None = None
    max_grad_norm: float | None = None
    nonfinite: str = "skip"
    lr_scaling: str = "none"
    lr_reference_samples: int | None = None
    weight: Callable[[Any], float] | None = None
    sync_buffers: bool = True
    resync_every: int = 100
    overlap: bool = False

    def __post_init__(self) -> None:
        """Refuse what is wrong, then what is not built yet, each by name and value."""
        for name, allowed in CHOICES.items():
            require(getattr(self, name) in allowed, name, getattr(self, name), f"one of {', '.join(allowed)}")
        self._check_numbers()
        self._check_consistent()
        self._check_built()

    @property
    def anchor_batches(self) -> int:
        """The anchor with its default filled in."""
        if self.anchor is not None:
            return self.anchor
        return 1 if self.policy == "sync" else DEFAULT_ANCHOR[self.average]

    @property
    def max_anchor_batches(self) -> int:
        """The largest anchor with its default filled in."""
        if self.max_anchor is not None:
            return self.max_anchor
        return 1000 if self.average == "parameters" else self.anchor_batches

    @property
    def anchor_moves(self) -> bool:
        """Whether the controller may change the anchor at all."""
        return self.policy == "cadence" and self.max_anchor_batches > (self.min_anchor or self.anchor_batches)

    def describe(self) -> dict[str, Any]:
        """Every setting as a plain value, for the event log and for comparing ranks."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value if _is_plain(value) else _name(value) for name, value in values.items()}

    def _check_numbers(self) -> None:
        for name in ("anchor", "min_anchor", "max_anchor", "lr_reference_samples"):
            _require_int(name, getattr(self, name), 1, or_none=True)
        _require_int("max_batch_diff", self.max_batch_diff, 0, or_none=True)
        for name in ("max_overshoot", "resync_every"):
            _require_int(name, getattr(self, name), 0)
        for name in ("meta_controller", "relax_up", "sync_buffers", "overlap"):
            require(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")
        _require_real("overhead_target", self.overhead_target, 0.01, 0.50)
        _require_real("gamma", self.gamma, 0.0, math.inf)
        _require_real("easgd_alpha", self.easgd_alpha, 0.0, 1.0, or_none=True)
        if self.max_grad_norm is not None:
            _require_real("max_grad_norm", self.max_grad_norm, 0.0, math.inf)
            require(self.max_grad_norm > 0, "max_grad_norm", self.max_grad_norm, "above 0")
        if self.speed_ratio is not None:
            slow, ratio = _pair("speed_ratio", self.speed_ratio)
            _require_int("speed_ratio[0], the slow slot", slow, 0)
            _require_real("speed_ratio[1]", ratio, 1.0, 64.0)
        require(
            self.weight is None or callable(self.weight), "weight", self.weight, "a function of the batch"
        )

    def _check_consistent(self) -> None:
        low = self.min_anchor if self.min_anchor is not None else self.anchor_batches
        require(low <= self.anchor_batches, "min_anchor", low, f"at most anchor ({self.anchor_batches})")
        require(
            self.max_anchor_batches >= self.anchor_batches,
            "max_anchor", self.max_anchor, f"at least anchor ({self.anchor_batches})",
        )  # fmt: skip
        scaled = self.lr_scaling != "none"
        require(
            scaled == (self.lr_reference_samples is not None),
            "lr_reference_samples", self.lr_reference_samples,
            f"given exactly when lr_scaling is not 'none' (it is {self.lr_scaling!r})",
        )  # fmt: skip
        if isinstance(self.guard, str):
            require(self.guard in GUARDS, "guard", self.guard, f"one of {', '.join(GUARDS)}, or an object")

    def _check_built(self) -> None:
        """DESIGN's promise: a value that is not built yet is refused by name, never ignored."""
        built: dict[str, tuple[Any, ...]] = {
            "policy": ("cadence", "sync"),
            "average": ("gradients",),
            "partition_ratios": (None,),
            "guard": (None, "none"),
            "gamma": (1.0,),
            "outer": (None,),
            "easgd_alpha": (None,),
            "max_overshoot": (3,),
            "overlap": (False,),
        }
        for name, allowed in built.items():
            value = getattr(self, name)
            if not any(value is one or value == one for one in allowed):
                raise ConfigError(
                    f"Cadence({name}={value!r}) is not built yet; what is: {', '.join(map(repr, allowed))}"
                )


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Return the settings of the shell.

    Args:
        environ: the variables; None: this process's own.

    Returns:
        The settings, defaults filled in.

    Raises:
        ConfigError: a variable that begins with ELCHE_ is unknown, or its value is refused.
    """
    return parse_environment(os.environ if environ is None else environ)


def variables() -> dict[str, str]:
    """Return a copy of this process's environment, for those who start processes."""
    return dict(os.environ)


def _require_int(name: str, value: object, least: int, *, or_none: bool = False) -> None:
    is_int = isinstance(value, int) and not isinstance(value, bool) and value >= least
    require(is_int or (or_none and value is None), name, value, f"an integer of at least {least}")


def _require_real(name: str, value: object, low: float, high: float, *, or_none: bool = False) -> None:
    is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
    in_bounds = is_real and low <= value <= high and math.isfinite(value)  # type: ignore[operator, arg-type]
    require(in_bounds or (or_none and value is None), name, value, f"a finite number from {low} to {high}")


def _pair(name: str, value: Any) -> tuple[Any, Any]:
    require(isinstance(value, (tuple, list)) and len(value) == 2, name, value, "a pair (slow slot, ratio)")
    return value[0], value[1]


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, tuple, list))


def _name(value: Any) -> str:
    return getattr(value, "__qualname__", type(value).__qualname__)
