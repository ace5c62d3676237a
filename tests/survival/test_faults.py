"""Whatever strikes whom, wherever: no hang, every sample once, equal replicas, and a log that tells it."""

from __future__ import annotations

import pytest
import survival_laws as laws
import survival_rig as rig
import survival_scripts as scripts
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from survival_rig import Fault

SLOW = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)  # the fixtures are the same for all
QUICK = settings(
    max_examples=25, derandomize=True, deadline=None, database=None, suppress_health_check=SLOW,
    phases=[Phase.explicit, Phase.generate],
)  # fmt: skip
LONG = settings(QUICK, max_examples=1000, derandomize=False)
LOSS = Fault(1, 1, "batch", "kill")  # makes a spare come in

STRUCK = {  # by point: whom, of three members and a spare that comes in for process 1
    **dict.fromkeys(rig.POINTS, (0, 2, 3)),
    "before knock": (3,),
    **dict.fromkeys(["before send", "after send"], (0, 2)),
    **dict.fromkeys(["before receive", "after receive"], (3,)),
    **dict.fromkeys(["before decide", "after decide", "before settle", "after settle"], (0, 2)),
    **dict.fromkeys(["before broadcast", "after broadcast"], (0, 3)),
}
PLACES = [(point, process) for point, processes in STRUCK.items() for process in processes]
OWN_PLACES = [place for place in PLACES if place[0] in rig.OWN_POINTS]
FIRST_PLACES = [(point, processes[0]) for point, processes in STRUCK.items()]


def strike(kind, point, process, epochs):
    fault = Fault(process, 1 if process != 3 else -1, point, kind)

    def before_batch(process):
        if process.number == 0 and process.has_fired(LOSS) and process.world.size == 2:
            process.rest_until(lambda: process.hears(3) or process.has_fired(fault))

    script = scripts.training(epochs, before_batch=before_batch)
    trial = rig.run(4, script, faults=[LOSS, fault], spares=1)
    laws.check(trial, epochs)
    assert trial.members()
    assert {LOSS, fault} == set(trial.fired)


@pytest.mark.parametrize(("point", "process"), PLACES)
def test_a_kill_at_every_point_while_a_spare_comes_in(point, process):
    strike("kill", point, process, epochs=4)


@pytest.mark.parametrize(("point", "process"), FIRST_PLACES)
def test_a_stop_at_every_point_while_a_spare_comes_in(point, process):
    strike("stop", point, process, epochs=4)


@pytest.mark.parametrize(
    ("kind", "point", "process"), [(k, *p) for k in ("raise", "return") for p in OWN_PLACES]
)
def test_a_script_that_ends_while_a_spare_comes_in(kind, point, process):
    strike(kind, point, process, epochs=4)


@pytest.mark.soak
@pytest.mark.parametrize(("point", "process"), PLACES)
def test_a_stop_at_every_point_from_which_all_come_back(point, process):
    strike("stop", point, process, epochs=20)


@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_without_faults_nobody_is_lost(n, stateful):
    trial = rig.run(n, scripts.training(2, stateful=stateful), stall=10)
    laws.check(trial, 2)
    assert trial.told("lost", "joined") == []
    assert len(trial.members()) == n


@st.composite
def plans(draw):
    """A job and up to four faults: processes, spares among them, epochs, whether it has a TorchState."""
    n = draw(st.integers(1, 5))
    spares = draw(st.integers(0, min(2, n - 1)))
    processes = st.integers(0, n - 1)
    faults = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["kill", "stop", "blink", "raise", "return"]))
        own = kind in ("raise", "return")
        point = draw(st.sampled_from(rig.OWN_POINTS if own else rig.POINTS))
        by = None if own else draw(st.one_of(st.none(), processes))
        faults.append(Fault(draw(processes), draw(st.integers(-1, 9)), point, kind, by))
    return n, spares, draw(st.sampled_from([2, 4, 10])), draw(st.booleans()), faults


def survive(plan):
    n, spares, epochs, stateful, faults = plan
    laws.check(rig.run(n, scripts.training(epochs, stateful=stateful), faults=faults, spares=spares), epochs)


@QUICK
@given(plans())
def test_any_faults(plan):
    survive(plan)


@pytest.mark.soak
@LONG
@given(plans())
def test_any_faults_many_times(plan):
    survive(plan)
