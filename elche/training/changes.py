"""Who goes and who comes between two windows, as the ranks' words in the last exchange say."""

from __future__ import annotations

from elche.comm.group import Group
from elche.policy import membership, wishes
from elche.policy.membership import Knock, SlotState, View
from elche.training.exchange import Met
from elche.training.job import Job


def proposed(met: Met, view: View, job: Job) -> View | None:
    """Return the next view that every member proposes; None: nothing changes.

    Args:
        met: the exchange of the window just committed.
        view: the present one.
        job: what all ranks know alike.

    Returns:
        The view without those that asked to go, or else with some that knocked.
    """
    goers = [view.processes[rank] for rank in wishes.leavers([row.wish for row in met.rows])]
    if goers:
        return membership.leave(view, goers, windows=job.window)
    knocks: set[Knock] = {knock for row in met.rows if (knock := row.heard()) is not None}
    if not knocks:
        return None
    return membership.admit(
        view,
        sorted(knocks),
        slots=job.schedule.slot_states(),
        max_ranks=job.num_slots,
        wanted=job.wanted,
        windows=job.window,
    )


def call_for_help(group: Group, job: Job) -> None:
    """Wake as many seats as there are places that nobody is about to take; the lowest rank does."""
    reserved = job.schedule.slot_states().count(SlotState.RESERVED)
    missing = min(job.wanted, job.num_slots) - len(group.view.members) - reserved
    missing -= len(group.pulse.knocks(job.epoch))
    if missing > 0:
        group.wake(missing)
