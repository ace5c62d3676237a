"""Ranks are lost, and NCCL fails, at each step of a compressed sum: no rank hangs, and all stay equal."""

from __future__ import annotations

import pytest
import survival_laws as laws
import survival_rig as rig
import survival_scripts as scripts
import torch
from fake_cupy import HANG
from fake_gpus import FakeGpus
from survival_rig import Fault

from elche import Compression

WAY = Compression.fp16.with_error_feedback()
LINE = "elche: gradients are summed through host memory, not by NCCL: "
STEPS = ["send", "recv", "allGather", "groupEnd"]


class Single(torch.nn.Module):
    """Passes its input on in single precision, which is what is compressed."""

    def forward(self, x):
        return x.float()


def network():
    seen, *layers = scripts.network()
    return torch.nn.Sequential(seen, Single(), *layers).float()


def run(faults, gpus, n=3):
    """Train two epochs on n ranks, of whom all but the killed are to reach the end with the same bits."""
    trial = rig.run(n, scripts.training(2, make=network, compression=WAY), faults=faults, stall=5.0)
    laws.check_once(trial, 2)
    laws.check_equal(trial.members())
    killed = {fault.process for fault in trial.fired}
    assert {report.process for report in trial.members()} == set(range(n)) - killed
    assert gpus.close_left_open() <= killed
    for process in {*range(n)} - killed:
        assert gpus.calls(process, "send")
        assert gpus.calls(process, "allReduce") == []
    return trial


@pytest.mark.parametrize("status", [1, 6, 8])
@pytest.mark.parametrize("where", STEPS)
def test_a_step_that_fails_once_is_made_again_by_a_new_communicator(where, status, monkeypatch, capfd):
    gpus = FakeGpus(monkeypatch, faults={1: {(where, 4): status}})
    assert run([], gpus).told("lost") == []
    for process in range(3):
        assert gpus.calls(process, "init") == ["init", "init"]
    assert LINE not in capfd.readouterr().err


@pytest.mark.parametrize("where", [("send", 9), ("recv", 9), ("groupEnd", 6)])
def test_a_rank_that_is_lost_while_a_step_hangs(where, monkeypatch):
    """It told the others that it would sum, and they hang in a call of its fourth window."""
    gpus = FakeGpus(monkeypatch, faults={process: {where: HANG} for process in (0, 2)})
    fault = Fault(1, 3, "after all_gather", "kill")
    assert fault in run([fault], gpus).fired


@pytest.mark.parametrize("process", [0, 1])
def test_the_others_go_on_when_a_rank_is_killed_in_its_batch(process, monkeypatch, capfd):
    gpus = FakeGpus(monkeypatch)
    fault = Fault(process, 2, "batch", "kill")
    assert fault in run([fault], gpus).fired
    assert LINE not in capfd.readouterr().err
