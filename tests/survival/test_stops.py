"""Jobs that stop, ranks that are asked to leave, checkpoints taken up again on other numbers of ranks."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest
import survival_laws as laws
import survival_rig as rig
import survival_scripts as scripts
from survival_rig import Fault

import elche
from elche.comm.memory_rendezvous import Killed
from elche.errors import CommError

CALM = 20.0
EPOCHS = 3


@pytest.fixture(autouse=True)
def steady(monkeypatch):
    """All are as fast, so each has two batches in every window that is not an epoch's last."""
    scripts.speeds(monkeypatch, 5.0, 5.0, 5.0, 5.0)


def job(folder, *, before=lambda process, state: None, at_step=lambda process, state: None, epochs=EPOCHS):
    """Return a script that trains with a directory for checkpoints and reports."""

    def script(process):
        model = scripts.network()
        optimizer = scripts.sgd(model)
        loader = scripts.wrapped(process, model, optimizer)
        state = elche.elastic.TorchState(model, optimizer, loader=loader, checkpoint=folder)
        before(process, state)
        for _ in state.epochs(epochs):
            scripts.go_through(process, model, loader, lambda process: at_step(process, state))
        return scripts.report(process, model)

    return script


def checkpoints(folder):
    return sorted(path.name for path in folder.iterdir())


def stop_in(window, number):
    """Let one process ask for the stop in a window."""

    def at_step(process, state):
        if process.number == number and process.window == window:
            state.request_stop()

    return at_step


def exit_codes(trial):
    return [getattr(outcome.error, "code", None) for outcome in trial.outcomes]


@pytest.mark.parametrize("number", [0, 2])
def test_all_stop_after_the_window_in_which_one_asks(tmp_path, number):
    trial = rig.run(4, job(tmp_path, at_step=stop_in(4, number)), spares=1, stall=CALM)
    spare = trial.results()[3]
    assert not spare.member
    laws.check_equal(trial.members())
    assert [report.updates for report in trial.members()] == [5, 5, 5]
    assert [event["window"] for event in trial.told("window")] == [0, 1, 2, 3, 4]
    assert checkpoints(tmp_path) == ["window-000005.elche"]
    (stop,) = trial.told("stop")
    assert (stop["reason"], stop["exit_code"]) == ("finished", 0)


def test_a_checkpoint_that_cannot_be_written_shows_in_the_exit_code(tmp_path, capsys, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("elche.elastic.checkpoint.write", full)
    trial = rig.run(3, job(tmp_path, at_step=stop_in(4, 1)), stall=CALM)
    assert exit_codes(trial) == [1, 1, 1]
    assert [event["window"] for event in trial.told("window")] == [0, 1, 2, 3, 4]
    where = tmp_path / "window-000005.elche"
    assert (
        f"elche: no checkpoint was written: [Errno 28] No space left on device: '{where}'\n"
        in capsys.readouterr().err
    )


def test_the_writer_dies_at_the_stop_and_another_writes(tmp_path):
    """Rank 0 is killed while all wait for its checkpoint."""

    def script(process):
        def die(*_):
            process.machine.kill(0)
            process.rendezvous.gone()

        def before(process, state):
            if process.number == 0:
                process.engine.on_stop = die

        return job(tmp_path, before=before, at_step=stop_in(3, 0))(process)

    trial = rig.run(3, script, stall=CALM)
    assert trial.errors() == [Killed, None, None]
    laws.check_equal(trial.members())
    assert [report.updates for report in trial.members()] == [4, 4]
    assert checkpoints(tmp_path) == ["window-000004.elche"]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_checkpoint_is_taken_up_on_fewer_and_on_more_ranks(tmp_path, n):
    first = rig.run(3, job(tmp_path, at_step=stop_in(5, 1)), stall=CALM)
    assert [report.updates for report in first.members()] == [6, 6, 6]
    second = rig.run(n, job(tmp_path, before=lambda process, state: state.load(tmp_path)), stall=CALM)
    second.results()
    assert len(second.members()) == n
    laws.check_equal(second.members())
    both = SimpleNamespace(events=first.events + second.events, told=None)
    both.told = lambda kind: [event for event in both.events if event["event"] == kind]
    laws.check_once(both, EPOCHS)
    assert second.told("window")[0]["window"] == 6
    laws.check_replay(both, second.members()[0])


def test_commit_and_restore_go_back_on_all_ranks():
    """As Horovod's scripts do: what was trained since the commit is trained again."""
    seen = {}

    def script(process):
        model = scripts.network()
        optimizer = scripts.sgd(model)
        loader = scripts.wrapped(process, model, optimizer)
        state = elche.elastic.TorchState(model, optimizer, loader=loader, best=0)
        epochs, mine = [], seen.setdefault(process.number, [])
        for epoch in state.epochs(EPOCHS):
            scripts.go_through(process, model, loader)
            epochs.append(epoch)
            if epochs == [0]:
                state.best = 7
                state.commit()
                mine.append(scripts.report(process, model).model)
                state.best = 8
            elif epochs == [0, 1]:
                state.restore()
                mine.append(scripts.report(process, model).model)
                assert state.best == 7
        assert epochs == [0, 1, 1, 2]
        return scripts.report(process, model)

    trial = rig.run(3, script, stall=CALM)
    laws.check_equal(list(trial.results()))
    for kept, restored in seen.values():
        assert scripts.plain(kept) == scripts.plain(restored)
    told = [event["window"] for event in trial.told("window")]
    assert told == [0, 1, 2, 3, *range(4, 8), *range(4, 8), 8, 9, 10, 11]


def test_below_min_ranks_the_job_ends_with_4_and_a_checkpoint(tmp_path):
    fault = Fault(1, 2, "batch", "kill")
    trial = rig.run(2, job(tmp_path), faults=[fault], min_ranks=2, stall=CALM)
    assert exit_codes(trial) == [4, None]
    assert trial.fired == [fault]
    assert checkpoints(tmp_path) == ["window-000003.elche"]
    assert trial.told("stop")[-1]["exit_code"] == 4


def test_a_spare_keeps_a_job_at_min_ranks(tmp_path):
    def at_step(process, state):
        if process.world.size == 1 and process.number == 0:
            process.rest_until(lambda: process.hears(2))

    trial = rig.run(
        3,
        job(tmp_path, at_step=at_step),
        faults=[Fault(1, 2, "batch", "kill")],
        min_ranks=2,
        spares=1,
        stall=CALM,
    )
    laws.check_once(trial, EPOCHS)
    assert [report.process for report in trial.members()] == [0, 2]


@pytest.mark.parametrize("most", ["1", "25%"])
def test_more_failures_than_may_be_end_the_job_with_1(tmp_path, most):
    faults = [Fault(1, 2, "batch", "kill"), Fault(3, 4, "batch", "kill")]
    trial = rig.run(4, job(tmp_path), faults=faults, max_failures=most, stall=CALM)
    assert exit_codes(trial) == [1, None, 1, None]
    assert trial.fired == faults
    assert checkpoints(tmp_path) == ["window-000005.elche"]


def ask(process):
    """Let a signal ask this process to go."""
    if process.world.ending is None:
        process.world.ending = SimpleNamespace(asked=signal.SIGTERM, exit_code=0)


def test_a_rank_that_is_asked_to_go_leaves_after_the_window(tmp_path):
    def at_step(process, state):
        if process.number == 1 and process.window == 2:
            ask(process)

    trial = rig.run(3, job(tmp_path, at_step=at_step), stall=CALM)
    assert exit_codes(trial) == [None, 143, None]
    laws.check_once(trial, EPOCHS)
    laws.check_equal(trial.members())
    laws.check_replay(trial, trial.members()[0])
    (lost,) = trial.told("lost")
    assert (lost["process"], lost["cause"]) == (1, "left")
    with_it = [event["window"] for event in trial.told("window") if event["generation"] == 0]
    assert with_it == [0, 1, 2, 3]  # it announced its going in window 2 and did all of window 3
    assert checkpoints(tmp_path) == []


def test_where_all_are_asked_to_go_they_stop_together(tmp_path):
    """Though the signal reaches them in different windows."""

    def at_step(process, state):
        if process.window >= 2 + (process.number == 1):
            ask(process)

    trial = rig.run(3, job(tmp_path, at_step=at_step), stall=CALM)
    codes, told = exit_codes(trial), [event["window"] for event in trial.told("window")]
    assert codes == [143, 143, 143]
    assert checkpoints(tmp_path) == [f"window-{len(told):06d}.elche"]
    assert trial.told("lost") == []


def test_when_all_are_lost_a_spare_says_so():
    faults = [Fault(0, 2, "batch", "kill"), Fault(1, 2, "batch", "kill")]
    trial = rig.run(3, scripts.training(3), faults=faults, spares=1, stall=CALM)
    assert trial.errors() == [Killed, Killed, CommError]
    assert "nobody is left who has the job's state" in str(trial.outcomes[2].error)
