"""Who takes whose place: spares, seats, processes that return, and what the schedule remembers of a slot."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import survival_laws as laws
import survival_rig as rig
import survival_scripts as scripts
from survival_rig import Fault

import elche
from elche.comm.memory_rendezvous import Killed

CALM = 20.0  # nobody is silent for so long


def alone(process):
    return process.world.size == 1


def joins(trial):
    return [(event["process"], event["slot"]) for event in trial.told("joined")]


def losses(trial):
    return [(event["process"], event["slot"], event["cause"]) for event in trial.told("lost")]


def windows_around(trial, kind):
    """The windows that the log tells of before and after its first event of a kind."""
    at = [event["event"] for event in trial.events].index(kind)
    halves = trial.events[:at], trial.events[at:]
    return [[event for event in half if event["event"] == "window"] for half in halves]


def test_a_spare_has_the_share_of_the_slot_it_takes_at_once(monkeypatch):
    scripts.speeds(monkeypatch, 10.0, 5.0, 99.0)

    def before_batch(process):
        if alone(process):
            process.rest_until(lambda: process.hears(2))

    script = scripts.training(2, samples=96, before_batch=before_batch)
    trial = rig.run(3, script, faults=[Fault(1, 3, "batch", "kill")], spares=1, stall=CALM)
    laws.check(trial, 2, samples=96)
    assert losses(trial) == [(1, 1, "died")]
    assert joins(trial) == [(2, 1)]
    assert trial.told("slot_dead") == []
    before, (first, *_) = windows_around(trial, "joined")
    empty = [event["window"] for event in before if event["batches"][1] == 0]
    assert empty == list(range(3, 3 + len(empty)))
    assert 1 <= len(empty) < 5
    assert before[-1]["ms_per_batch"] == [10.0, 5.0]
    assert first["counts"] == [2, 4]


def test_after_the_death_exception_a_slot_is_measured_afresh(monkeypatch):
    scripts.speeds(monkeypatch, 10.0, 5.0, 2.5)
    dead = threading.Event()
    training = scripts.training(4, samples=96, before_batch=lambda process: before_batch(process))

    def before_batch(process):
        if process.engine.job.schedule.died:
            dead.set()
            process.rest_until(lambda: process.hears(2))

    def script(process):
        if process.number == 2:
            assert dead.wait(10)
        return training(process)

    trial = rig.run(3, script, faults=[Fault(1, 3, "batch", "kill")], spares=1, stall=CALM)
    laws.check(trial, 4, samples=96)
    assert [event["slot"] for event in trial.told("slot_dead")] == [1]
    before, (fifth, *_) = windows_around(trial, "slot_dead")  # it is told beside the window that brought it
    assert [event["window"] for event in before if event["batches"][1] == 0] == [3, 4, 5, 6]
    assert fifth["window"] == 7
    assert joins(trial) == [(2, 1)]
    _, (fresh, *_, last) = windows_around(trial, "joined")
    assert fresh["counts"][1] == 2  # the anchor, as in a first window
    assert last["ms_per_batch"] == [10.0, 2.5]


def test_a_process_that_was_silent_gets_its_own_slot_back_though_a_spare_waits():
    """And the spare stays one."""
    aside = threading.Event()

    def before_batch(process):
        if process.number != 1 and process.world.size == 2 and not aside.is_set():
            process.rest_until(lambda: process.hears(1, 3))
            aside.set()

    script = scripts.training(6, before_batch=before_batch)
    trial = rig.run(4, script, faults=[Fault(1, 2, "batch", "stop")], spares=1)
    laws.check(trial, 6)
    assert losses(trial) == [(1, 1, "silent")]
    assert joins(trial) == [(1, 1)]
    assert [report.process for report in trial.members()] == [0, 1, 2]
    assert not trial.outcomes[3].result.member


def test_a_slot_that_is_reserved_for_too_long_goes_to_a_spare():
    def before_batch(process):
        if process.number == 1:
            if process.window == 2:
                process.say_what_i_do()
                process.machine.stop(1)
        elif 2 in process.world.group.view.processes:
            process.machine.resume(1)
        elif process.engine.job.schedule.died:
            process.rest_until(lambda: process.hears(2))

    trial = rig.run(3, scripts.training(6, before_batch=before_batch), spares=1)
    laws.check(trial, 6)
    assert losses(trial) == [(1, 1, "silent")]
    assert joins(trial) == [(2, 1)]
    assert [event["slot"] for event in trial.told("slot_dead")] == [1]
    assert [report.process for report in trial.members()] == [0, 2]


def test_a_rank_that_wakes_does_not_pass_for_rank_0():
    """What rank 0 writes after an epoch is never older than what another rank 0 wrote meanwhile."""
    written, ended = [], threading.Event()

    def before_batch(process):
        if process.number == 1 and process.engine.job.epoch == 3:
            process.rest_until(ended.is_set)

    def after_epoch(process):
        if elche.rank() == 0:
            written.append((process.number, process.window))
        if process.number == 0 and len(written) > 1:
            ended.set()

    script = scripts.training(4, before_batch=before_batch, after_epoch=after_epoch)
    stop = Fault(0, 3, "batch", "stop")
    trial = rig.run(2, script, faults=[stop])
    laws.check(trial, 4)
    assert losses(trial) == [(0, 0, "silent")]
    windows = [window for _, window in written]
    assert windows == sorted(windows)
    assert {process for process, _ in written} == {0, 1}


def test_two_spares_for_two_losses():
    faults = [Fault(1, 2, "batch", "kill"), Fault(2, 2, "batch", "kill")]

    def before_batch(process):
        if process.world.size == 1:
            process.rest_until(lambda: process.hears(3, 4))

    trial = rig.run(5, scripts.training(4, before_batch=before_batch), faults=faults, spares=2, stall=CALM)
    laws.check(trial, 4)
    assert sorted(joins(trial)) == [(3, 1), (4, 2)]
    assert [report.process for report in trial.members()] == [0, 3, 4]


def test_every_member_is_replaced_one_after_the_other():
    faults = [Fault(0, 2, "batch", "kill"), Fault(1, 6, "batch", "kill")]

    def before_batch(process):
        spare = 2 if process.window < 6 else 3
        if alone(process) and process.number != spare:
            process.rest_until(lambda: process.hears(spare))

    trial = rig.run(4, scripts.training(4, before_batch=before_batch), faults=faults, spares=2, stall=CALM)
    laws.check(trial, 4)
    assert joins(trial) == [(2, 0), (3, 1)]
    assert [report.process for report in trial.members()] == [2, 3]


def test_a_world_of_one_survives():
    faults = [Fault(0, 2, "batch", "kill"), Fault(2, 2, "after all_reduce", "kill")]
    trial = rig.run(3, scripts.training(3), faults=faults, stall=CALM)
    laws.check(trial, 3)
    assert trial.errors() == [Killed, None, Killed]
    assert trial.outcomes[1].result.member


class Guard:
    """A guard that has been told how many ranks there shall be."""

    is_open = True

    def __init__(self, ranks):
        self.told = [{"ranks": ranks}]

    def hear(self):
        told, self.told = self.told, []
        return told

    def tell(self, message):
        pass

    def close(self):
        pass


@pytest.mark.parametrize("grown", [True, False])
def test_a_job_grows_by_a_seat_that_was_woken_when_told_so(grown):
    ended = threading.Event()

    def before_batch(process):
        if grown and process.number == 0 and process.window == 2:
            process.world.guard = Guard(3)
        elif grown and process.window >= 3 and process.world.size == 2:
            process.rest_until(lambda: process.hears(2))

    training = scripts.training(4, before_batch=before_batch)

    def script(process):
        if process.number == 2:
            rig.until(lambda: process.world.group.pulse.woken or ended.is_set())
            if ended.is_set():
                return SimpleNamespace(early=False)
        try:
            return training(process)
        finally:
            ended.set()

    trial = rig.run(3, script, respawn=1, max_ranks=3, stall=CALM)
    assert joins(trial) == ([(2, 2)] if grown else [])
    assert len(trial.members()) == (3 if grown else 2)
    laws.check(trial, 4)
    if grown:
        assert trial.told("window")[-1]["batches"][2] > 0


def test_a_seat_is_woken_for_a_slot_that_is_lost():
    def before_batch(process):
        if alone(process) and process.window > 2:  # the end of window 2 has woken the seat
            process.rest_until(lambda: process.hears(2))

    training = scripts.training(4, before_batch=before_batch)

    def script(process):
        if process.number == 2:
            rig.until(lambda: process.world.group.pulse.woken)
        return training(process)

    trial = rig.run(3, script, faults=[Fault(1, 2, "batch", "kill")], respawn=1, stall=CALM)
    laws.check(trial, 4)
    assert joins(trial) == [(2, 1)]


def test_a_spare_without_a_loss_stays_outside():
    trial = rig.run(3, scripts.training(6), spares=1, stall=CALM)
    laws.check(trial, 6)
    assert joins(trial) == []
    assert [report.process for report in trial.members()] == [0, 1]


def test_after_step_a_process_waits_for_nobody_in_the_others_eyes():
    """A loop there that never ends would else be waited for without a limit."""
    seen = []

    def before_batch(process):
        step, pulse = process.engine.step, process.world.group.pulse

        def step_and_look(loss, *, scaled):
            updated = step(loss, scaled=scaled)
            seen.append(pulse._beat())
            return updated

        if not seen:
            process.engine.step = step_and_look
            seen.append(pulse._beat())

    rig.run(2, scripts.training(2, before_batch=before_batch), stall=CALM).results()
    assert {doing for _, doing, *_ in seen[1:]} == {"outside of its batches"}
    assert {limit for *_, limit in seen[1:]} == {600.0}
