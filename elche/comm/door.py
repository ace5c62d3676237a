"""How a process outside gets in: it knocks, and looks whether the newest view has it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from elche.comm.base import Rendezvous
from elche.errors import CommError
from elche.policy.membership import Kind, View

if TYPE_CHECKING:
    from elche.comm.group import Group

KNOCK_SECONDS = 0.05
NAP_SECONDS = 2e-3


class Entry(NamedTuple):
    """What came of knocking.

    Attributes:
        view: the one that lets this process in; None: it has not been let in.
        epoch: the members' epoch, where it is not the one knocked for.
        ended: why the job has ended.
    """

    view: View | None = None
    epoch: int | None = None
    ended: str | None = None


def knock(group: Group, rendezvous: Rendezvous, kind: Kind, slot: int, epoch: int) -> Entry:
    """Ask the members to be let in, until they do, or it makes no sense.

    Args:
        group: this process's.
        rendezvous: how it finds the others.
        kind: what it is.
        slot: the slot it had; -1: none.
        epoch: the epoch it wants to take part in.

    Returns:
        What came of it.

    Raises:
        CommError: all members are gone, and none has said that the job has ended.
    """
    pulse, knocked = group.pulse, -KNOCK_SECONDS
    while True:
        group.follow()
        if group.let_in:
            return Entry(view=group.view)
        now = pulse.clock.now()
        if now - knocked >= KNOCK_SECONDS:
            knocked = now
            abandoned = group.others() <= rendezvous.gone()  # the last one wrote before it went
            if (ended := rendezvous.look_up("end")) is not None:
                return Entry(ended=ended)
            if abandoned:
                raise CommError("all members are gone; nobody is left who has the job's state")
            pulse.tell_all(["knock", kind, slot, epoch, group.view.generation])
        pulse.listen()
        here = pulse.take_here()
        if here is not None and here > epoch:
            return Entry(epoch=here)
        time.sleep(NAP_SECONDS)
