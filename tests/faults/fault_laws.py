"""What must hold after any faults: judged by the event log, and by what each process wrote at its end."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from fault_kinds import COMES_BACK, HANGS, LEAVES, STAYS
from fault_points import Fault
from trials import laws
from trials.scenarios import Scenario
from trials.training import Record, Snapshot, WindowRecord, make_loader

# Where a window has an end that is not committed.
UNFINISHED = {"load", "batch", "middle", "last", "exchange", "all_reduce", "add", "added"}


@dataclass
class Job:
    """A training with faults, after its end.

    Attributes:
        scenario: what was trained.
        ranks: processes that were members at first.
        faults: what was to come to pass.
        folder: where the script has written.
        spares: warm processes, the last.
        is_cut: whether it was stopped in the midst of an epoch.
        results: what each process that came to the end of its script wrote there.
    """

    scenario: Scenario
    ranks: int
    faults: list[Fault]
    folder: Path
    spares: int = 0
    is_cut: bool = False

    def __post_init__(self) -> None:
        self.loader = make_loader(self.scenario, self.ranks)
        self.results = {int(path.stem): torch.load(path) for path in self.folder.glob("*.pt")}

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "log.jsonl").read_text().splitlines()]

    @cached_property
    def fired(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "fired.jsonl").read_text().splitlines()]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.log if event["event"] == kind]

    @property
    def survivors(self) -> set[int]:
        """Processes that are to come to the end of their script."""
        ended = {fault.process for fault in self.faults if fault.kind not in COMES_BACK | STAYS}
        return set(range(self.ranks + self.spares)) - ended


def all_fired(job: Job) -> None:
    """Every fault came to pass, once."""
    planned = Counter((fault.process, fault.at, fault.number, fault.kind) for fault in job.faults)
    assert Counter((f["process"], f["at"], f["number"], f["kind"]) for f in job.fired) == planned


def lost_and_joined(job: Job) -> None:
    """The log names each loss, with its cause, and each entry, by slot, process and rank; no other."""
    lost = [fault for fault in job.faults if fault.kind not in STAYS and fault.at != "receive"]
    expected = Counter((fault.process, cause_of(fault)) for fault in lost)
    assert Counter((lost["process"], lost["cause"]) for lost in job.events("lost")) == expected
    holders = dict(enumerate(range(job.ranks)))
    former, generation = dict(holders), 0
    for event in job.log:
        if event["event"] not in ("lost", "joined"):
            continue
        if event["generation"] != generation:
            former, generation = dict(holders), event["generation"]
        if event["event"] == "joined":
            assert event["slot"] not in holders
            holders[event["slot"]] = event["process"]
        else:
            assert event["rank"] in [sorted(held).index(event["slot"]) for held in (former, holders)]
            assert holders.pop(event["slot"]) == event["process"]
    inside = {process for process, result in job.results.items() if result["inside"]}
    assert inside == set(holders.values())
    assert inside <= job.survivors == set(job.results)


def returned(job: Job) -> None:
    """What is dealt again is what the lost process had in the window, where it was lost before the commit.

    Where all its messages of the reduce were under way, or all ranks had added up theirs, the others may have
    all they need, and commit.
    """
    for earlier, fired in enumerate(job.fired):
        num_others = {"all_reduce": job.ranks - 1 - earlier, "added": job.ranks - 1 - earlier, "add": 1}
        has_told_all = fired["number"] >= num_others.get(fired["at"], job.ranks)
        if fired["at"] in UNFINISHED and fired["kind"] not in STAYS | {"term"} and not has_told_all:
            told = [lost["returned"] for lost in job.events("lost") if lost["process"] == fired["process"]]
            assert positions(fired["share"]) in map(positions, told)


def positions(runs: list[list[int]]) -> set[int]:
    return {position for start, stop in runs for position in range(start, stop)}


def cause_of(fault: Fault) -> str:
    if fault.kind in HANGS:
        return "silent"
    return "left" if fault.kind in LEAVES else "died"


def equal(job: Job) -> None:
    """Law 3: all members have the same parameters, buffers, optimizer and policy state, bit for bit."""
    ends = {
        (result["digest"], result["num_updates"], result["windows"])
        for result in job.results.values()
        if result["inside"]
    }
    assert len(ends) == 1


def once(job: Job) -> None:
    """Law 2: each window is there once; so is each sample of a whole epoch, and none twice in a cut one."""
    windows = job.events("window")
    (num_windows,) = {result["windows"] for result in job.results.values() if result["inside"]}
    assert [window["window"] for window in windows] == list(range(num_windows))
    whole = [event["epoch"] for event in job.events("epoch")]
    assert whole == list(range(len(whole)))
    for epoch in sorted({window["epoch"] for window in windows}):
        runs = [run[1:] for window in windows if window["epoch"] == epoch for run in window["ranges"]]
        ids = job.loader.permutation(epoch)
        trained = Counter(i for start, stop in runs for i in ids[start:stop])
        assert set(trained.values()) == {1}
        assert epoch not in whole or len(trained) == len(ids)
    assert job.is_cut or len(whole) == job.scenario.epochs


def seen(job: Job) -> None:
    """What the loops got is what the log says, but for batches of windows that were lost."""
    windows = job.events("window")
    trained = {window["window"]: trained_ids(job, window) for window in windows}
    for process, result in job.results.items():
        mine: dict[int, list[int]] = {}
        for window, ids in result["seen"]:
            mine.setdefault(window, []).extend(ids)
        dropped = [window for window, ids in mine.items() if ids not in trained.get(window, {}).values()]
        assert len(dropped) <= sum(fault.process == process for fault in job.faults)


def trained_ids(job: Job, window: dict[str, Any]) -> dict[int, list[int]]:
    ids, by_slot = job.loader.permutation(window["epoch"]), {}
    for slot, start, stop in window["ranges"]:
        by_slot.setdefault(slot, []).extend(ids[start:stop])
    return by_slot


def replay(job: Job) -> None:
    """Law 4: one process gets the survivors' parameters and buffers from the log alone."""
    began = next(result for result in job.results.values() if result["before"][0] == 0)
    last = next(result for result in job.results.values() if result["inside"])
    before, after = (Snapshot(state[0], {}, state[1]) for state in (began["before"][1], last["after"]))
    final = WindowRecord(0, (), True, last["num_updates"], last["digest"], after)
    laws.replay(laws.Trial(job.scenario, [Record(before, [final])], [job.log], []))


LAWS = [all_fired, lost_and_joined, returned, equal, once, seen, replay]


def check(job: Job) -> None:
    for law in LAWS:
        law(job)
