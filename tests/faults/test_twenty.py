"""Each single fault twenty times in a row: no flake."""

from __future__ import annotations

import pytest
from fault_kinds import COMES_BACK
from fault_laws import check
from fault_points import Fault
from fault_trainings import LONG, MLP, NORM

SINGLE = {
    **{kind: (kind, "batch") for kind in ("kill", "segv", "exit_0", "raise", "raise_in_thread")},
    **{kind: (kind, "batch") for kind in ("sys_exit_5", "term", "leave_loop", "slow")},
    **{kind: (kind, "middle") for kind in ("stop", "loop")},
    "stuck loader": ("block", "load"),
    **{
        at: ("kill", at)
        for at in ("start", "exchange", "all_reduce", "add", "added", "agree", "commit", "committed")
    },
    **{at: ("kill", at) for at in ("last", "epoch")},
}
NUMBERS = {"batch": 2, "start": 5, "exchange": 3, "all_reduce": 3, "add": 2, "added": 3, "agree": 3}


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SINGLE)
def test_twenty_in_a_row(name, train):
    kind, at = SINGLE[name]
    for n in range(20):
        window = 0 if at == "start" else 2 + n % 5
        fault = Fault(process=n % 3, kind=kind, at=at, window=window, number=n % NUMBERS.get(at, 1))
        if kind in COMES_BACK:
            job, _ = train(3, {**MLP, **LONG}, fault, stall=1, stop={"lost": 1, "joined": 1})
        else:
            # 14 windows of 6 batches, so that an epoch's last one has some for every rank.
            scenario = {**NORM, "samples": 252, "epochs": 6 if at == "last" else 3}
            job, _ = train(3, scenario, fault, backend="mpi" if at == "all_reduce" else "auto")
        check(job)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["exit_3", "stop_for_ever", "loop_for_ever", "kill"])
def test_twenty_in_a_row_under_the_launcher(kind, launch):
    for n in range(20):
        fault = Fault(process=n % 3, kind=kind, at="middle", window=2 + n % 5)
        job, _ = launch(3, {**MLP, **LONG}, fault, stall=1, stop={"lost": 1, "joined": 0})
        check(job)
