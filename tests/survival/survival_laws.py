"""The laws that a job must keep, whatever struck it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from survival_rig import STOP_SECONDS, ScriptError, Trial
from survival_scripts import Data, Report, network, sgd

import elche
from elche.comm.memory_rendezvous import Killed, Outcome
from elche.errors import CommError


def covered(events: Iterable[dict[str, Any]]) -> dict[int, list[int]]:
    """By epoch, the positions of its committed windows."""
    found: dict[int, list[int]] = {}
    for event in events:
        if event["event"] == "window":
            for _, start, stop in event["ranges"]:
                found.setdefault(event["epoch"], []).extend(range(start, stop))
    return found


def check_once(trial: Trial, epochs: int, samples: int = 48, *, complete: bool = True) -> None:
    """Every sample of an epoch is in exactly one committed window, and every window's line is there once."""
    windows = [event["window"] for event in trial.told("window")]
    assert windows == list(range(len(windows)))
    for epoch, positions in covered(trial.events).items():
        assert len(set(positions)) == len(positions), f"epoch {epoch} has positions twice"
    if complete:
        assert {e: sorted(at) for e, at in covered(trial.events).items()} == {
            epoch: list(range(samples)) for epoch in range(epochs)
        }
        assert [event["epoch"] for event in trial.told("epoch")] == list(range(epochs))


def check_equal(reports: Sequence[Report]) -> None:
    """All have the same bits."""
    for one in reports[1:]:
        assert one.state == reports[0].state, f"process {one.process} differs from {reports[0].process}"


def check_replay(trial: Trial, reached: Report, samples: int = 48) -> None:
    """One plain process that goes through the log's windows comes to the same parameters."""
    model, data = network(), Data(samples)
    optimizer = sgd(model)
    order = elche.DataLoader(data, 2, shuffle=True, seed=3)
    for event in filter(lambda event: event["updated"], trial.told("window")):
        ids = [order.permutation(event["epoch"])[at] for _, *run in event["ranges"] for at in range(*run)]
        optimizer.param_groups[0]["lr"] = event["lr"]
        optimizer.zero_grad()
        (model(data.x[ids]) - data.y[ids]).square().mean().backward()
        optimizer.step()
    expected = dict(model.named_parameters())
    for name, tensor in reached.model.items():
        torch.testing.assert_close(tensor, expected[name].detach(), rtol=1e-10, atol=1e-12)


def how_it_ended(outcome: Outcome[Any]) -> str:
    """Return the kind of fault that ends a process so; "" for none."""
    if outcome.error is None:
        return "return" if outcome.result.early else ""
    return {Killed: "kill", ScriptError: "raise"}.get(type(outcome.error), "")


def check(trial: Trial, epochs: int, *, samples: int = 48) -> None:
    """All laws of a training that was given `trial.fired`."""
    ends = {(fault.process, fault.kind) for fault in trial.fired if fault.kind not in STOP_SECONDS}
    members = trial.members()
    for process, outcome in enumerate(trial.outcomes):
        error = outcome.error
        if {(process, kind) for kind in ("kill", "raise", "return")} & ends:
            assert (process, how_it_ended(outcome)) in ends, outcome
        elif error is not None:  # that must be because nobody was left that has the state
            assert isinstance(error, CommError), outcome
            assert "nobody is left" in str(error), outcome
            assert not members
        else:
            assert not outcome.result.early
    died = {event["process"] for event in trial.told("lost") if event["cause"] == "died"}
    assert died <= {process for process, _ in ends}, trial.told("lost")
    check_once(trial, epochs, samples, complete=bool(members))
    if members:
        check_equal(members)
        check_replay(trial, members[0], samples)
