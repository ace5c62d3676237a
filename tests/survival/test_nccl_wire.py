"""Ranks are lost, and NCCL fails, at each step of a compressed sum: no rank hangs, and all stay equal."""

from __future__ import annotations

import itertools

import pytest
import survival_laws as laws
import survival_rig as rig
import survival_scripts as scripts
import torch
from fake_cupy import HANG
from fake_gpus import FakeGpus, process
from survival_rig import Fault

from elche import Compression
from elche.training import wire

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
    for number in {*range(n)} - killed:
        assert gpus.calls(number, "send")
        assert gpus.calls(number, "allReduce") == []
    return trial


@pytest.mark.parametrize("status", [1, 6, 8])
@pytest.mark.parametrize("where", STEPS)
def test_a_step_that_fails_once_is_made_again_by_a_new_communicator(where, status, monkeypatch, capfd):
    gpus = FakeGpus(monkeypatch, faults={1: {(where, 4): status}})
    assert run([], gpus).told("lost") == []
    for number in range(3):
        assert gpus.calls(number, "init") == ["init", "init"]
    assert LINE not in capfd.readouterr().err


@pytest.mark.parametrize("where", [("send", 9), ("recv", 9), ("groupEnd", 6)])
def test_a_rank_that_is_lost_while_a_step_hangs(where, monkeypatch):
    """It told the others that it would sum, and they hang in a call of its fourth window."""
    gpus = FakeGpus(monkeypatch, faults={number: {where: HANG} for number in (0, 2)})
    fault = Fault(1, 3, "after all_gather", "kill")
    assert fault in run([fault], gpus).fired


def test_a_kernel_that_fails_in_backward_is_told_before_the_others_wait(monkeypatch):
    """They wait in NCCL for this rank's next message, which would be that of another bucket."""
    num_sums, weighted_sum = itertools.count(), wire.weighted_sum

    def failing(shards_wn, units_w):
        if process() == 1 and next(num_sums) == 1:
            raise RuntimeError("CUDA error: out of memory")
        return weighted_sum(shards_wn, units_w)

    monkeypatch.setattr(wire, "weighted_sum", failing)
    gpus = FakeGpus(monkeypatch)
    assert run([], gpus).told("lost") == []
    assert next(num_sums) > 2, "it has failed, and gone on"
    for number in range(3):
        assert gpus.calls(number, "init") == ["init", "init"]


@pytest.mark.parametrize("killed", [0, 1])
def test_the_others_go_on_when_a_rank_is_killed_in_its_batch(killed, monkeypatch, capfd):
    gpus = FakeGpus(monkeypatch)
    fault = Fault(killed, 2, "batch", "kill")
    assert fault in run([fault], gpus).fired
    assert LINE not in capfd.readouterr().err
