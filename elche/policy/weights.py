"""What a batch, a slot and an update weigh in the average."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real

from elche.config import CHOICES
from elche.errors import ConfigError

SMALLEST_WEIGHT, LARGEST_WEIGHT = 1e-30, 1e30
LR_SCALINGS = CHOICES["lr_scaling"]


def check_weight(weight: float) -> float:
    """Return the weight of a batch, as its samples or the user's function gave it.

    Args:
        weight: what one batch counts in the weighted mean; 0 leaves it out. Sums are kept in float32, so
            others lie in 1e-30..1e30.

    Returns:
        The same weight, as a float.

    Raises:
        ConfigError: it is no number, or out of these bounds.
    """
    if not isinstance(weight, Real) or not 0 <= weight < math.inf:
        raise ConfigError(f"weight: {weight} of a batch is not finite and at least 0")
    if weight != 0 and not SMALLEST_WEIGHT <= weight <= LARGEST_WEIGHT:
        raise ConfigError(
            f"weight: {weight} of a batch is neither 0 nor from {SMALLEST_WEIGHT:g} to {LARGEST_WEIGHT:g}"
        )
    return float(weight)


def total_mass(weights: Iterable[float]) -> float:
    """Return the sum of weights, correctly rounded and so the same in whatever order they come.

    Args:
        weights: one per batch or per slot, each finite and at least 0.

    Returns:
        The mass by which a sum of weighted gradients is divided; 0.0 where nobody has any.
    """
    return math.fsum(weights)


def mean_scale(mass: float) -> float | None:
    """Return the factor that turns a sum of weighted gradients into their mean: `1 / mass`.

    Args:
        mass: total mass of the window.

    Returns:
        The factor; None for mass 0: no update takes place, instead of 0/0.

    Raises:
        ConfigError: the mass is negative, inf or nan.
    """
    if not 0 <= mass < math.inf:
        raise ConfigError(f"mass: {mass} of a window is not finite and at least 0")
    return 1 / mass if mass else None


def local_mass(num_steps: int, gamma: float = 1.0) -> float:
    """Return what a slot's parameters weigh after steps of its own: `num_steps ** gamma`.

    Args:
        num_steps: optimizer steps the slot did in this window.
        gamma: 1 weighs by steps, 0 weighs all slots that moved alike.

    Returns:
        The mass; 0.0 without a step, whatever gamma is.

    Raises:
        ConfigError: a negative number of steps, or gamma is not finite.

    Example:
        >>> local_mass(9, 0.5), local_mass(0, 0.0)
        (3.0, 0.0)
    """
    if num_steps < 0:
        raise ConfigError(f"num_steps: {num_steps} is below 0")
    if not math.isfinite(gamma):
        raise ConfigError(f"gamma: {gamma} is not finite")
    return float(num_steps) ** gamma if num_steps else 0.0


def lr_factor(lr_scaling: str, samples_per_update: float, reference_samples: float) -> float:
    """Return by how much the learning rate grows with the samples an update averages over.

        none: 1,    linear: samples / reference,    sqrt: sqrt(samples / reference)

    Args:
        lr_scaling: "none", "linear" or "sqrt".
        samples_per_update: samples in this window, at least 0.
        reference_samples: samples per update the learning rate was tuned for, above 0.

    Returns:
        The factor.

    Raises:
        ConfigError: an unknown scaling, or samples out of bounds.

    Example:
        >>> lr_factor("linear", 512, 256), lr_factor("sqrt", 1024, 256)
        (2.0, 2.0)
    """
    if lr_scaling not in LR_SCALINGS:
        raise ConfigError(f"lr_scaling: {lr_scaling!r} is not one of {', '.join(LR_SCALINGS)}")
    if lr_scaling == "none":
        return 1.0
    if not 0 <= samples_per_update < math.inf:
        raise ConfigError(f"samples_per_update: {samples_per_update} is not finite and at least 0")
    if not 0 < reference_samples < math.inf:
        raise ConfigError(f"reference_samples: {reference_samples} is not finite and above 0")
    ratio = samples_per_update / reference_samples
    return ratio if lr_scaling == "linear" else math.sqrt(ratio)
