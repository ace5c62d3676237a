"""Training with compressed gradients: ranks stay equal, and little is lost, as two bytes must."""

from __future__ import annotations

import pytest
import torch
import training_rig as rig

import elche
from elche import Compression
from elche.errors import ConfigError, MismatchError

WAYS = {
    "none": Compression.none,
    "bf16": Compression.bf16,
    "fp16": Compression.fp16,
    "bf16, fed back": Compression.bf16.with_error_feedback(),
    "fp16, fed back": Compression.fp16.with_error_feedback(),
}


def train(rank, compression, dtype=torch.float32, epochs=6):
    model = rig.mlp().to(dtype)
    data = rig.samples(48, dtype=dtype)
    loader = elche.DataLoader(data, 2, shuffle=True, seed=0)
    optimizer = elche.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        model.named_parameters(),
        loader=loader,
        cadence=elche.Cadence(policy="sync"),
        compression=compression,
    )
    for _ in range(epochs):
        rig.loop(model, optimizer, loader)
    return torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])


@pytest.fixture(scope="module")
def trained():
    """By way and rank, the parameters after 48 updates."""
    return {name: rig.ranks(3, train, way) for name, way in WAYS.items()}


@pytest.mark.parametrize("name", WAYS)
def test_all_ranks_have_the_same_bits(trained, name):
    first, *others = trained[name]
    assert all(torch.equal(first, other) for other in others)


def test_the_way_is_as_far_from_the_exact_one_as_its_rounding(trained):
    exact = trained["none"][0]
    away = {name: float((trained[name][0] - exact).abs().max()) for name in WAYS}
    assert away["none"] == 0.0
    assert 0 < away["bf16"] < 0.05  # of parameters of about 1
    assert 0 < away["fp16"] < away["bf16"] / 3
    assert away["bf16, fed back"] < away["bf16"]


def test_double_precision_travels_as_it_is():
    plain, compressed = (rig.ranks(2, train, way, torch.float64) for way in (WAYS["none"], WAYS["bf16"]))
    assert torch.equal(plain[0], compressed[0])


def test_another_compression_is_refused():
    with pytest.raises(ConfigError, match=r"compression must be one of elche\.Compression's, got 'fp16'"):
        rig.ranks(1, train, "fp16")


def test_ranks_that_compress_differently_are_told():
    def script(rank):
        train(rank, WAYS["bf16"] if rank else WAYS["none"])

    with pytest.raises(MismatchError, match='compression is "none" on rank 0 but "bf16" on rank 1'):
        rig.ranks(2, script)
