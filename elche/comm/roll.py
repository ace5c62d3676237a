"""The roll call: waits until every member has answered, is gone or is silent, and settles the next view."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from elche.comm.base import DEADLINE_SECONDS, Rendezvous
from elche.errors import DeadlineError
from elche.policy.membership import Answer, View, roll_call

if TYPE_CHECKING:
    from elche.comm.group import Group

NAP_SECONDS = 0.5e-3
LOOK_SECONDS = 0.01


def call_roll(group: Group, rendezvous: Rendezvous, answer: Answer) -> View:
    """Find the view that follows the group's, unless another member has settled it first.

    Args:
        group: this process's.
        rendezvous: how it hears of the others.
        answer: this process's own.

    Returns:
        The next view, which this process may be outside of.

    Raises:
        DeadlineError: it could not be settled within ten minutes.
    """
    view, pulse = group.view, group.pulse
    pulse.answer(view.generation, answer)
    begun = looked = pulse.clock.now()
    while True:
        pulse.listen()
        answers = {**group.answers(), answer.process: answer}
        silent = group.signs.silent(view) - answers.keys()
        decision = roll_call(view, answers, rendezvous.gone(), silent)
        if decision.view is not None:
            return group.settle(decision.view)
        now = pulse.clock.now()
        if now - looked >= LOOK_SECONDS:
            looked = now
            if group.go_on():
                return group.view
        if now - begun > DEADLINE_SECONDS:
            raise DeadlineError(f"no next view within {DEADLINE_SECONDS:g} s: {decision.reason}")
        time.sleep(NAP_SECONDS)
