"""Ranks are lost while NCCL sums: all laws hold, and a new communicator is made after the old one is gone."""

from __future__ import annotations

import pytest
import survival_laws as laws
import survival_rig as rig
import survival_scripts as scripts
from fake_cupy import FOREVER, HANG
from fake_gpus import FakeGpus
from survival_rig import Fault
from test_faults import FIRST_PLACES, LOSS

from elche.comm import nccl
from elche.comm.nccl import NcclComm
from elche.errors import CommError

ENDS = ("init", "abort", "destroy")
LINE = "elche: gradients are summed through host memory, not by NCCL: "
STRUCK = [place for place in FIRST_PLACES if place[0] not in ("after knock", "before knock")]


def check(gpus, trial, epochs):
    """All laws; who lives aborts a communicator, then destroys it, and only then makes the next."""
    laws.check(trial, epochs)
    killed = {fault.process for fault in trial.fired}
    assert gpus.close_left_open() <= killed
    for member in trial.members():
        made = [call[:2] for call in gpus.cupy(member.process).calls if call[0] in ENDS and call[1] >= 0]
        expected = [(name, number) for number in range(len({n for _, n in made})) for name in ENDS]
        assert list(dict.fromkeys(made)) == expected  # one whose call hangs is aborted several times


@pytest.mark.parametrize(("point", "process"), STRUCK)
def test_a_kill_at_every_point_while_a_spare_comes_in(point, process, monkeypatch):
    gpus, fault = FakeGpus(monkeypatch), Fault(process, 1 if process != 3 else -1, point, "kill")

    def before_batch(process):
        if process.number == 0 and process.has_fired(LOSS) and process.world.size == 2:
            process.rest_until(lambda: process.hears(3) or process.has_fired(fault))

    script = scripts.training(4, before_batch=before_batch)
    trial = rig.run(4, script, faults=[LOSS, fault], spares=1)
    check(gpus, trial, 4)
    assert {LOSS, fault} == set(trial.fired)


def test_a_new_id_for_each_view_and_sums_by_nccl_to_the_end(monkeypatch, capfd):
    gpus = FakeGpus(monkeypatch)
    trial = rig.run(3, scripts.training(3), faults=[Fault(0, 2, "batch", "kill")])
    check(gpus, trial, 3)
    inits = [[call[2:] for call in gpus.cupys[p].calls if call[0] == "init"] for p in (1, 2)]
    assert inits == [[(3, 1), (2, 0)], [(3, 2), (2, 1)]]
    assert gpus.cupys[0].fabric.num_ids == 2
    assert gpus.calls(1, "get_unique_id") == ["get_unique_id"], "rank 0 of the new view makes the new id"
    assert gpus.calls(1)[-3:] == ["groupEnd", "abort", "destroy"]
    assert LINE not in capfd.readouterr().err


@pytest.mark.parametrize("status", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("where", ["groupStart", "allReduce", "groupEnd", "check_async_error"])
def test_a_sum_that_fails_once_is_made_again_by_a_new_communicator(where, status, monkeypatch, capfd):
    gpus = FakeGpus(monkeypatch, faults={1: {(where, 2): status}})
    trial = rig.run(3, scripts.training(2), stall=5.0)
    check(gpus, trial, 2)
    assert len(trial.members()) == 3
    assert trial.told("lost") == []
    for process in range(3):
        assert gpus.calls(process, "init") == ["init", "init"]
    assert LINE not in capfd.readouterr().err


@pytest.mark.parametrize("where", ["groupEnd", "allReduce"])
def test_a_rank_that_is_lost_while_a_call_hangs(where, monkeypatch):
    """NCCL's first sum connects the ranks, and hangs where one of them is gone."""
    faults = {process: {(where, 3): HANG} for process in (0, 2)}
    gpus = FakeGpus(monkeypatch, faults=faults)
    trial = rig.run(3, scripts.training(3), faults=[Fault(1, 3, "before all_reduce", "kill")])
    check(gpus, trial, 3)


def test_nccl_that_always_fails_is_given_up_after_three_times(monkeypatch, capfd):
    faults = {2: {("groupEnd", index): 1 for index in range(100)}}
    gpus = FakeGpus(monkeypatch, faults=faults)
    trial = rig.run(3, scripts.training(2), stall=5.0)
    check(gpus, trial, 2)
    assert len(trial.members()) == 3
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith(LINE)]
    assert len(told) == 1
    assert told[0].startswith(f"{LINE}on rank 2 NCCL has failed 3 times in a row: NCCL's all_reduce failed")
    for process in range(3):
        assert len(gpus.calls(process, "init")) == 3


def test_a_rank_whose_gpu_is_stuck_ends_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr(NcclComm.end, "__kwdefaults__", {"limit_seconds": 0.2})
    monkeypatch.setattr(nccl, "CLOSE_SECONDS", 0.1)
    gpus = FakeGpus(monkeypatch, faults={1: {("groupEnd", 2): 1, ("abort", 0): FOREVER}})
    trial = rig.run(3, scripts.training(2), stall=5.0)
    gpus.cupy(1).released.set()
    assert "its GPU is stuck, and this process cannot go on" in str(trial.outcomes[1].error)
    assert not isinstance(trial.outcomes[1].error, CommError)
    assert [report.process for report in trial.members()] == [0, 2]
    laws.check_once(trial, 2)
    laws.check_equal(trial.members())
    laws.check_replay(trial, trial.members()[0])
