"""Trainings with a known outcome: the scenarios are what their names say, and odd ones end well."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trials.laws import equal, exact, once, replay
from trials.models import RARE_IDS
from trials.scenarios import SCENARIOS, Scenario
from trials.starting import in_memory


def counts_of(trial):
    return [[len(slot) for slot in window.ranges] for window in trial.records[0].windows]


def windows_of(trial):
    return [event for event in trial.logs[0] if event["event"] == "window"]


def test_53_samples_over_counts_4_2_1(tmp_path):
    trial = in_memory(SCENARIOS["mlp_4_2_1"], 3, tmp_path)
    assert counts_of(trial)[:3] == [[4, 2, 1], [4, 2, 1], [3, 0, 1]]
    assert [sum(event["samples"]) for event in windows_of(trial)][:3] == [21, 21, 11]


def test_measured_speeds_become_counts(tmp_path):
    trial = in_memory(SCENARIOS["mlp_measured"], 3, tmp_path)
    assert counts_of(trial) == [[2, 2, 2], [2, 3, 7], [2, 4, 8], [0, 0, 4]]


def test_growing_grows_by_the_same_on_all_ranks(tmp_path):
    trial = in_memory(SCENARIOS["growing"], 3, tmp_path)
    anchors = [event["anchor"] for event in windows_of(trial)]
    assert anchors[0] == 1
    assert anchors[-1] > 1


def test_idle_ranks_are_in_the_middle_of_epochs(tmp_path):
    assert counts_of(in_memory(SCENARIOS["idle"], 3, tmp_path))[:3] == [[2, 0, 1], [0, 1, 2], [1, 3, 0]]


def test_a_branch_is_taken_by_one_rank_only_and_one_by_nobody(tmp_path):
    trial = in_memory(SCENARIOS["branch_sgd"], 3, tmp_path)
    takers = [
        sum(any(rare in ids for epoch, ids in record.seen if epoch == 0) for record in trial.records)
        for rare in RARE_IDS
    ]
    windows = trial.records[0].windows
    with_rare = [window.after.grads["rare.weight"] is not None for window in windows]
    assert takers == [1, 1]
    assert 2 <= sum(with_rare) <= 4 < len(windows)
    before, last = trial.records[0].before.model["unused.weight"], windows[-1].after
    assert last.grads["unused.weight"] is None
    assert torch.equal(last.model["unused.weight"], before)


def test_clipping_and_poison_bite(tmp_path):
    clipped = in_memory(SCENARIOS["clipped"], 2, tmp_path / "clipped").records[0].windows
    norms = [sum(g.norm() ** 2 for g in window.after.grads.values()) ** 0.5 for window in clipped]
    assert max(norms) == pytest.approx(0.3, rel=1e-4)
    poisoned = in_memory(SCENARIOS["poisoned"], 2, tmp_path / "poisoned")
    assert sum(sum(event["skipped"]) for event in windows_of(poisoned)) == 3


def test_a_window_of_no_weight_changes_nothing(tmp_path):
    weightless = Scenario(cadence={"weight": lambda batch: 0.0}, warm=True)
    trial = in_memory(weightless, 2, tmp_path)
    once(trial)
    record = trial.records[0]
    assert [w.updated for w in record.windows] == [False] * len(record.windows)
    after = record.windows[-1].after.model
    assert all(torch.equal(after[name], value) for name, value in record.before.model.items())
    assert [event["updated"] for event in windows_of(trial)] == [False] * len(record.windows)


def test_epochs_without_a_batch_end(tmp_path):
    trial = in_memory(Scenario(samples=5, batch_size=8, drop_last=True), 3, tmp_path)
    assert [(record.windows, record.seen) for record in trial.records] == [([], [])] * 3
    ends = [(e["epoch"], e["windows"], e["num_updates"]) for e in trial.logs[0] if e["event"] == "epoch"]
    assert ends == [(0, 0, 0), (1, 0, 0)]


@st.composite
def scenarios(draw):
    model = draw(st.sampled_from(["Mlp", "Branching", "ConvNet"]))
    batch_size, drop_last = draw(st.integers(1, 9)), draw(st.booleans())
    rows = st.tuples(*[st.integers(0, 4)] * 4)
    return Scenario(
        model=model,
        dtype=torch.float64,
        batch_size=batch_size,
        samples=draw(st.integers(max(4, batch_size * drop_last), 45)),
        counts=draw(st.none() | st.lists(rows, min_size=1, max_size=4).map(tuple)),
        cadence={"anchor": draw(st.integers(1, 3)), "max_grad_norm": draw(st.sampled_from([None, 0.5]))},
        ms=draw(st.tuples(*[st.floats(1.0, 50.0)] * 4)),
        drop_last=drop_last,
        warm=draw(st.booleans()),
    )


@settings(max_examples=50, deadline=None, derandomize=True)
@given(scenario=scenarios(), n=st.integers(1, 4))
def test_laws_hold_for_any_sizes_and_counts(scenario, n):
    with tempfile.TemporaryDirectory() as folder:
        trial = in_memory(scenario, n, Path(folder))
    for law in (exact, once, equal, replay):
        law(trial)
