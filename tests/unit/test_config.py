"""Settings are right, or refused with their name, their value and the bound."""

from __future__ import annotations

import dataclasses
import doctest
import math
from typing import Any

import pytest

import elche.config
from elche.config import Cadence
from elche.errors import ConfigError

# DESIGN's table of defaults, spelled out once more.
DEFAULTS = {
    "policy": "cadence",
    "average": "gradients",
    "anchor": None,
    "min_anchor": None,
    "max_anchor": None,
    "overhead_target": 0.05,
    "max_batch_diff": None,
    "max_overshoot": 3,
    "speed_ratio": None,
    "partition_ratios": None,
    "guard": None,
    "meta_controller": True,
    "relax_up": False,
    "gamma": 1.0,
    "outer": None,
    "easgd_alpha": None,
    "max_grad_norm": None,
    "nonfinite": "skip",
    "lr_scaling": "none",
    "lr_reference_samples": None,
    "weight": None,
    "sync_buffers": True,
    "resync_every": 100,
    "overlap": False,
}


def number_of_tokens(batch: Any) -> float:
    return float(len(batch))


class Opaque:
    pass


def test_defaults_are_the_published_ones() -> None:
    assert Cadence().describe() == DEFAULTS


def test_a_cadence_is_frozen_and_keyword_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Cadence().anchor = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        Cadence("sync")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="anchors"):
        Cadence(anchors=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("settings", "anchor", "largest", "moves"),
    [
        ({}, 2, 2, False),
        ({"anchor": 5}, 5, 5, False),
        ({"anchor": 5, "max_anchor": 9}, 5, 9, True),
        ({"anchor": 5, "min_anchor": 1}, 5, 5, True),
        ({"max_anchor": 2}, 2, 2, False),
        ({"policy": "sync"}, 1, 1, False),
        ({"policy": "sync", "anchor": 4}, 4, 4, False),
        ({"policy": "sync", "max_anchor": 4}, 1, 4, False),
    ],
)
def test_the_anchor_fills_in_and_moves_only_when_asked(
    settings: dict[str, Any], anchor: int, largest: int, moves: bool
) -> None:
    cadence = Cadence(**settings)
    assert (cadence.anchor_batches, cadence.max_anchor_batches, cadence.anchor_moves) == (
        anchor,
        largest,
        moves,
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"anchor": 1, "min_anchor": 1, "max_anchor": 1},
        {"overhead_target": 0.01},
        {"overhead_target": 0.5},
        {"max_batch_diff": 0},
        {"speed_ratio": (0, 1.0)},
        {"speed_ratio": (3, 64)},
        {"gamma": 1},
        {"max_grad_norm": 1e-9},
        {"nonfinite": "raise"},
        {"nonfinite": "keep"},
        {"lr_scaling": "sqrt", "lr_reference_samples": 1},
        {"weight": number_of_tokens},
        {"resync_every": 0},
        {"guard": "none"},
    ],
)
def test_a_value_on_its_bound_is_taken_as_it_is(settings: dict[str, Any]) -> None:
    cadence = Cadence(**settings)
    assert {name: getattr(cadence, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("policy", "fast", "one of cadence, sync, async"),
        ("policy", None, "one of cadence, sync, async"),
        ("average", "weights", "one of gradients, parameters"),
        ("nonfinite", "ignore", "one of skip, raise, keep"),
        ("lr_scaling", "log", "one of none, linear, sqrt"),
        ("guard", "trends", "one of trend, msf, none, or an object"),
        ("anchor", 0, "an integer of at least 1"),
        ("anchor", 2.0, "an integer of at least 1"),
        ("anchor", True, "an integer of at least 1"),
        ("anchor", "2", "an integer of at least 1"),
        ("min_anchor", 0, "an integer of at least 1"),
        ("min_anchor", 3, "at most anchor (2)"),
        ("max_anchor", 0, "an integer of at least 1"),
        ("max_anchor", 1, "at least anchor (2)"),
        ("overhead_target", 0.009, "a finite number from 0.01 to 0.5"),
        ("overhead_target", 0.51, "a finite number from 0.01 to 0.5"),
        ("overhead_target", math.nan, "a finite number from 0.01 to 0.5"),
        ("overhead_target", "5 %", "a finite number from 0.01 to 0.5"),
        ("overhead_target", None, "a finite number from 0.01 to 0.5"),
        ("max_batch_diff", -1, "an integer of at least 0"),
        ("max_overshoot", -1, "an integer of at least 0"),
        ("resync_every", -1, "an integer of at least 0"),
        ("resync_every", None, "an integer of at least 0"),
        ("gamma", -0.1, "a finite number from 0.0 to inf"),
        ("gamma", math.inf, "a finite number from 0.0 to inf"),
        ("gamma", None, "a finite number from 0.0 to inf"),
        ("easgd_alpha", 1.1, "a finite number from 0.0 to 1.0"),
        ("max_grad_norm", 0.0, "above 0"),
        ("max_grad_norm", -1.0, "a finite number from 0.0 to inf"),
        ("speed_ratio", 2.3, "a pair (slow slot, ratio)"),
        ("speed_ratio", (0, 2.3, 1), "a pair (slow slot, ratio)"),
        ("lr_reference_samples", 256, "given exactly when lr_scaling is not 'none' (it is 'none')"),
        ("weight", 3, "a function of the batch"),
        ("meta_controller", 1, "True or False"),
        ("relax_up", None, "True or False"),
        ("sync_buffers", "yes", "True or False"),
        ("overlap", 0, "True or False"),
    ],
)
def test_a_wrong_value_is_named_with_its_bound(name: str, value: Any, bound: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cadence(**{name: value})
    assert str(caught.value) == f"{name} must be {bound}, got {value!r}"


@pytest.mark.parametrize(
    ("pair", "refused"),
    [
        ((-1, 2.0), "speed_ratio[0], the slow slot must be an integer of at least 0, got -1"),
        ((None, 2.0), "speed_ratio[0], the slow slot must be an integer of at least 0, got None"),
        ((0, 0.5), "speed_ratio[1] must be a finite number from 1.0 to 64.0, got 0.5"),
        ((0, 65), "speed_ratio[1] must be a finite number from 1.0 to 64.0, got 65"),
        ((0, None), "speed_ratio[1] must be a finite number from 1.0 to 64.0, got None"),
    ],
)
def test_each_half_of_a_speed_ratio_is_checked(pair: tuple[Any, Any], refused: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cadence(speed_ratio=pair)
    assert str(caught.value) == refused


def test_lr_scaling_needs_its_reference() -> None:
    with pytest.raises(ConfigError, match=r"lr_reference_samples must be given .*'linear'.*, got None"):
        Cadence(lr_scaling="linear")


@pytest.mark.parametrize(
    ("name", "value", "built"),
    [
        ("policy", "async", "'cadence', 'sync'"),
        ("average", "parameters", "'gradients'"),
        ("partition_ratios", (1.0, 2.0), "None"),
        ("guard", "trend", "None, 'none'"),
        ("guard", "msf", "None, 'none'"),
        ("guard", Opaque(), "None, 'none'"),
        ("gamma", 0.5, "1.0"),
        ("outer", Opaque(), "None"),
        ("easgd_alpha", 0.5, "None"),
        ("max_overshoot", 4, "3"),
        ("overlap", True, "False"),
    ],
)
def test_what_is_not_built_yet_is_refused_by_name(name: str, value: Any, built: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cadence(**{name: value})
    assert str(caught.value) == f"Cadence({name}={value!r}) is not built yet; what is: {built}"


def test_describe_names_a_function_instead_of_holding_it() -> None:
    assert Cadence(weight=number_of_tokens).describe() == {**DEFAULTS, "weight": "number_of_tokens"}
    assert Cadence(speed_ratio=(1, 2.5)).describe() == {**DEFAULTS, "speed_ratio": (1, 2.5)}


def test_a_configerror_is_a_valueerror() -> None:
    with pytest.raises(ValueError, match="anchor"):
        Cadence(anchor=-1)


def test_the_examples_in_the_docstrings_hold() -> None:
    result = doctest.testmod(elche.config)
    assert (result.failed, result.attempted) == (0, 2)
