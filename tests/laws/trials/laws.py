"""The laws of DESIGN section 6, of what all ranks recorded; each raises AssertionError."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from trials.models import make_model
from trials.reference import Reference, distance, state_tensors
from trials.scenarios import Scenario
from trials.training import Record, WindowRecord, make_loader


@dataclass
class Trial:
    """What a scenario's training did.

    Attributes:
        records: of each rank.
        logs: the event logs that it left, as dicts.
        warned: texts of the warnings.
        again: the records of a second training, where the scenario is repeated.
    """

    scenario: Scenario
    records: Sequence[Record]
    logs: Sequence[Sequence[dict[str, Any]]]
    warned: Sequence[str]
    again: Sequence[Record] = ()

    def __post_init__(self) -> None:
        self.loader = make_loader(self.scenario, len(self.records))

    def windows(self) -> Sequence[WindowRecord]:
        return self.records[0].windows

    def reference(self) -> Reference:
        """A plain training that continues from where rank 0 began."""
        model = make_model(self.scenario.model, self.scenario.dtype, seed=99)
        reference = Reference(self.scenario, model, self.loader.dataset)
        reference.load(self.records[0].before)
        return reference

    def ids(self, epoch: int, ranges: Sequence[tuple[int, int]]) -> list[list[int]]:
        """The sample ids of each range."""
        order = self.loader.permutation(epoch)
        return [order[start:stop] for start, stop in ranges]


def exact(trial: Trial) -> None:
    """Law 1: from the state before it, a window does what one process does on the window's samples."""
    tolerance, reference, before = trial.scenario.tolerance, trial.reference(), trial.records[0].before
    assert trial.windows()
    updates = 0
    for window in trial.windows():
        reference.load(before)
        batches = [trial.ids(window.epoch, ranges) for ranges in window.ranges]
        num_samples = sum(len(batch) for slot in batches for batch in slot)
        lr = trial.scenario.expected_lr(window.epoch, updates, num_samples)
        assert reference.window(batches, lr) == window.updated
        after, model = window.after, reference.model
        if window.updated:
            grads = {name: p.grad for name, p in model.named_parameters()}
            assert distance(after.grads, grads) <= tolerance
        assert distance(after.model, model.state_dict()) <= tolerance
        state = state_tensors(reference.optimizer.state_dict())
        assert distance(state_tensors(after.optimizer), state) <= tolerance
        before, updates = after, updates + window.updated


def once(trial: Trial) -> None:
    """Law 2: per epoch every sample is in one window; the loops got what the windows say."""
    size, scenario = trial.scenario.batch_size, trial.scenario
    num_samples = len(trial.loader.dataset)
    covered = num_samples - (num_samples % size if scenario.drop_last else 0)
    for epoch in range(scenario.epochs):
        windows = [window for window in trial.windows() if window.epoch == epoch]
        batches = [batch for window in windows for slot in window.ranges for batch in slot]
        assert sorted(batches) == [(at, min(at + size, covered)) for at in range(0, covered, size)]
        for rank, record in enumerate(trial.records):
            mine = [batch for window in windows for batch in window.ranges[rank]]
            assert [ids for at, ids in record.seen if at == epoch] == trial.ids(epoch, mine)
        seen = [i for record in trial.records for at, ids in record.seen if at == epoch for i in ids]
        assert sorted(seen) == sorted(trial.loader.permutation(epoch)[:covered])
    for log in trial.logs:
        logged_once(trial, log, covered)


def logged_once(trial: Trial, log: Sequence[dict[str, Any]], covered: int) -> None:
    """The log tells of the same windows, each once, and of each epoch's end."""
    windows = [event for event in log if event["event"] == "window"]
    assert [event["window"] for event in windows] == list(range(len(trial.windows())))
    for epoch in range(trial.scenario.epochs):
        ranges = [tuple(run[1:]) for event in windows if event["epoch"] == epoch for run in event["ranges"]]
        positions = [position for start, stop in ranges for position in range(start, stop)]
        assert sorted(positions) == list(range(covered))
    ends = [event for event in log if event["event"] == "epoch"]
    assert [event["epoch"] for event in ends] == list(range(trial.scenario.epochs))
    assert sum(event["windows"] for event in ends) == len(windows)
    assert [event["num_updates"] for event in ends][-1] == trial.windows()[-1].num_updates


def equal(trial: Trial) -> None:
    """Law 3: after every window all ranks are equal, bit for bit, and count the same updates."""
    for rank, record in enumerate(trial.records):
        for index, (first, mine) in enumerate(zip(trial.windows(), record.windows, strict=True)):
            assert replace(mine, after=None) == replace(first, after=None), f"window {index}, rank {rank}"
        told = [(w.epoch, w.num_updates) for w in record.windows if w.updated and w.ranges[rank]]
        assert record.updates == told
    skips = trial.scenario.poisoned is not None
    assert not [text for text in trial.warned if not (skips and "left out of the mean" in text)]
    counts = [window.num_updates for window in trial.windows()]
    assert counts == list(accumulate(window.updated for window in trial.windows()))


def replay(trial: Trial) -> None:
    """Law 4: one process gets the final parameters from the log alone."""
    for log in trial.logs:
        reference, size = trial.reference(), trial.scenario.batch_size
        for event in log:
            if event["event"] != "window":
                continue
            batches: list[list[list[int]]] = [[] for _ in event["slots"]]
            for slot, start, stop in event["ranges"]:
                cuts = [(at, min(at + size, stop)) for at in range(start, stop, size)]
                batches[slot] += trial.ids(event["epoch"], cuts)
            assert event["samples"] == [sum(map(len, slot)) for slot in batches]
            assert event["batches"] == [len(slot) for slot in batches]
            assert reference.window(batches, event["lr"]) == event["updated"]
        final = trial.windows()[-1].after.model
        assert distance(reference.model.state_dict(), final) <= 1e-5


def deterministic(trial: Trial) -> None:
    """Law 6: the same plan and seed, the same bits."""
    assert trial.again
    first, second = ([window.digest for window in run[0].windows] for run in (trial.records, trial.again))
    assert first == second


def resynced(trial: Trial) -> None:
    """Law 3's guard: what was perturbed after update 5 is found after 8, told, and made equal."""
    for rank, record in enumerate(trial.records):
        pairs = zip(trial.windows(), record.windows, strict=True)
        different = [index for index, (first, mine) in enumerate(pairs) if first.digest != mine.digest]
        assert different == ([5, 6, 7] if rank == 1 else [])
    (event,) = [event for event in trial.logs[0] if event["event"] == "resync"]
    assert (event["window"], event["differing_ranks"], event["same_devices"]) == (8, [1], True)
    assert trial.warned
    assert all("after 8 windows" in text and "ranks [1]" in text for text in trial.warned)


LAWS = {law.__name__: law for law in (exact, once, equal, replay, deterministic)}


def laws_of(scenario: Scenario) -> list[str]:
    """The names of the laws that a scenario can be judged by."""
    return [name for name in LAWS if name != "deterministic" or scenario.repeated]
