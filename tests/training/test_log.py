"""The event log in odd places: one warning, and training goes on."""

from __future__ import annotations

import dataclasses
import json
import warnings

import pytest
import torch
import training_rig as rig

from elche import events
from elche.observe.jsonl import EventLog


def train(rank):
    model = rig.mlp()
    rig.fit(model, torch.optim.SGD(model.parameters(), lr=0.1), rig.samples(12), epochs=2)
    return rig.state_of(model)


@pytest.mark.parametrize("path", ["nowhere/log", ".", "/dev/full", "/proc/log"])
def test_a_log_that_cannot_be_written(monkeypatch, tmp_path, path):
    monkeypatch.setenv("ELCHE_LOG", str(tmp_path / path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        states = rig.ranks(2, train)
    assert len([warning for warning in caught if "no event log" in str(warning.message)]) == 1
    rig.assert_equal(*states)


def test_a_log_of_each_rank(monkeypatch, tmp_path):
    monkeypatch.setenv("ELCHE_LOG", str(tmp_path / "log.{rank}"))
    rig.ranks(3, train)
    logs = [(tmp_path / f"log.{rank}").read_text().splitlines() for rank in range(3)]
    kinds = [[json.loads(line)["event"] for line in log] for log in logs]
    assert kinds[0] == kinds[1] == kinds[2]
    assert kinds[0].count("epoch") == 2
    ranges = [[json.loads(line).get("ranges") for line in log] for log in logs]
    assert ranges[0] == ranges[1] == ranges[2]


def test_values_that_json_has_not_become_null(monkeypatch, tmp_path):
    monkeypatch.setenv("ELCHE_LOG", str(tmp_path / "log"))

    def script(rank):
        model = rig.mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=float("inf"))
        optimizer, loader = rig.distribute(model, optimizer, rig.samples(4), 2)
        for batch in loader:
            optimizer.zero_grad()
            rig.squared(model, batch).backward()
            optimizer.report_loss(float("nan"))
            optimizer.step()

    rig.ranks(2, script)
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    window = next(event for event in events if event["event"] == "window")
    assert window["lr"] is None
    assert window["loss"] is None


def window(number):
    return events.Window(**{field.name: number for field in dataclasses.fields(events.Window)})


def a_run():
    return events.Run(**{field.name: 0 for field in dataclasses.fields(events.Run)})


@pytest.mark.parametrize(("told", "added"), [(1, [1, 2]), (2, [2]), (3, [])])
def test_a_job_that_goes_on_from_a_snapshot_adds_the_lines_that_the_dead_one_kept(tmp_path, told, added):
    dead, snapshot = EventLog(str(tmp_path / "log")), [(1, window(1)), (2, window(2))]
    dead.take_over(0)
    for number in range(told):
        dead.write(window(number))
    dead.close()
    again = EventLog(str(tmp_path / "log"))
    again.take_over(0)
    again.write(a_run())
    again.resume(snapshot)
    again.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    numbers = [line.get("window", line["event"]) for line in lines]
    assert numbers == [*range(told), "run", *added]


def test_a_writer_that_was_stopped_tells_no_window_again(tmp_path):
    path = tmp_path / "log"
    stopped, other = EventLog(str(path)), EventLog(str(path))
    stopped.take_over(0)
    for number in (0, 1):
        for log in (stopped, other):
            log.confirm()
            log.keep(number, window(number))
    other.take_over(0)  # the first writer sleeps, with window 1 in its hands
    other.confirm()
    other.keep(2, window(2))
    other.confirm()
    stopped.confirm()
    for log in (stopped, other):
        log.close()
    assert [json.loads(line)["window"] for line in path.read_text().splitlines()] == [0, 1, 2]
