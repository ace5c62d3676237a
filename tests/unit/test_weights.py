from __future__ import annotations

import itertools
import math
import re

import pytest

from elche.errors import ConfigError
from elche.policy.weights import check_weight, local_mass, lr_factor, mean_scale, total_mass


@pytest.mark.parametrize("weight", [0, 1, 0.25, 64, 1e30, 1e-30])
def test_a_weight_passes_as_a_float(weight):
    checked = check_weight(weight)
    assert (checked, type(checked)) == (weight, float)


@pytest.mark.parametrize("weight", [-1, -1e-300, math.inf, -math.inf, math.nan, None, 1e31, 1e-31])
def test_a_wrong_weight_is_named(weight):
    with pytest.raises(ConfigError, match=re.escape(f"weight: {weight} ")):
        check_weight(weight)


def test_total_mass():
    assert total_mass([]) == 0.0
    assert total_mass([0.0, 0.0]) == 0.0
    assert total_mass([64, 64, 37]) == 165.0


def test_total_mass_does_not_depend_on_the_order():
    totals = {total_mass(order) for order in itertools.permutations([0.1, 1e16, 0.7, 3.0, 1e-9])}
    assert totals == {10000000000000004.0}


def test_mean_scale():
    assert mean_scale(8.0) == 0.125
    assert mean_scale(0.0) is None


@pytest.mark.parametrize("mass", [-1.0, math.inf, math.nan])
def test_a_wrong_mass_is_named(mass):
    with pytest.raises(ConfigError, match=f"mass: {mass} "):
        mean_scale(mass)


def test_a_short_batch_weighs_what_it_holds():
    # Two slots, batches of 4 and a last one of 1 sample; per-sample gradients 1..9, their mean is 5.
    batches = [[1, 2, 3, 4], [5, 6, 7, 8], [9]]
    bucket = sum(len(batch) * (sum(batch) / len(batch)) for batch in batches)
    scale = mean_scale(total_mass(len(batch) for batch in batches))
    assert scale is not None
    assert bucket * scale == 5.0


@pytest.mark.parametrize(
    ("num_steps", "gamma", "expected"),
    [
        (7, 1.0, 7.0),
        (9, 0.5, 3.0),
        (9, 0.0, 1.0),
        (3, 2.0, 9.0),
        (0, 1.0, 0.0),
        (0, 0.0, 0.0),
        (0, -1.0, 0.0),
    ],
)
def test_local_mass(num_steps, gamma, expected):
    assert local_mass(num_steps, gamma) == expected


def test_local_mass_counts_steps_by_default():
    assert local_mass(5) == 5.0


def test_wrong_local_mass_is_named():
    with pytest.raises(ConfigError, match="num_steps: -1 is below 0"):
        local_mass(-1)
    with pytest.raises(ConfigError, match="gamma: nan is not finite"):
        local_mass(1, math.nan)


@pytest.mark.parametrize(
    ("lr_scaling", "samples", "reference", "expected"),
    [
        ("none", 512, 256, 1.0),
        ("none", 0, 0, 1.0),
        ("linear", 512, 256, 2.0),
        ("linear", 64, 256, 0.25),
        ("sqrt", 1024, 256, 2.0),
        ("sqrt", 64, 256, 0.5),
        ("linear", 0, 256, 0.0),
    ],
)
def test_lr_factor(lr_scaling, samples, reference, expected):
    assert lr_factor(lr_scaling, samples, reference) == expected


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("cubic", 1, 1), "lr_scaling: 'cubic' is not one of none, linear, sqrt"),
        (("linear", -1, 1), "samples_per_update: -1 "),
        (("linear", math.nan, 1), "samples_per_update: nan "),
        (("sqrt", 1, 0), "reference_samples: 0 "),
        (("sqrt", 1, math.inf), "reference_samples: inf "),
    ],
)
def test_wrong_lr_scaling_is_named(arguments, text):
    with pytest.raises(ConfigError, match=text):
        lr_factor(*arguments)
