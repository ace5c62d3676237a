"""Refusals of bad input; each names the value and its bound."""

from __future__ import annotations

from collections.abc import Sized

from elche.errors import ConfigError


def at_least(name: str, value: int, bound: int) -> int:
    """Return `value`, refused below `bound`."""
    if value < bound:
        raise ConfigError(f"{name} is {value}; it must be at least {bound}")
    return value


def slot_of(name: str, slot: int, world_size: int) -> int:
    """Return `slot`, refused outside 0..world_size-1."""
    if not 0 <= slot < world_size:
        raise ConfigError(f"{name} is {slot}; it must lie in 0..{world_size - 1}")
    return slot


def one_per_slot(name: str, values: Sized, world_size: int) -> None:
    """Refuse `values` of another length than the world size."""
    if len(values) != world_size:
        raise ConfigError(f"{name} has {len(values)} values; it must have {world_size}, one per slot")
