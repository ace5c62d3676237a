"""Who enters at a window boundary, and in which slot; worked out by hand."""

from __future__ import annotations

import pytest

from elche.errors import ConfigError
from elche.policy.membership import Knock, Member, SlotState, View, admit

LIVING, RESERVED, VACANT, UNUSED = SlotState


def admitted(members, knocks, slots, wanted=4, max_ranks=8):
    view = View(2, tuple(Member(*member) for member in members), windows=5, started=3)
    return admit(
        view, [Knock(*knock) for knock in knocks], slots=slots, max_ranks=max_ranks, wanted=wanted, windows=6
    )


THREE = ((0, 0), (1, 1), (3, 3))


@pytest.mark.parametrize(
    ("knocks", "third_slot", "entered"),
    [
        ([], VACANT, {}),
        ([(2, "returning", 2)], RESERVED, {2: 2}),
        ([(2, "returning", 2)], VACANT, {2: 2}),
        ([(5, "returning", 3)], RESERVED, {}),  # another holds its slot, and this one is not for it
        ([(5, "returning", 3)], VACANT, {5: 2}),
        ([(5, "returning", -1)], VACANT, {5: 2}),
        ([(5, "returning", 99)], VACANT, {5: 2}),
        ([(5, "spare", -1)], VACANT, {5: 2}),
        ([(5, "spare", 2)], RESERVED, {}),
        ([(5, "seat", -1)], VACANT, {5: 2}),
        ([(5, "added", -1)], VACANT, {5: 2}),
        ([(5, "spare", -1), (2, "returning", 2)], VACANT, {2: 2}),
        ([(5, "spare", -1), (2, "returning", 2)], RESERVED, {2: 2}),
        ([(4, "seat", -1), (5, "spare", -1)], VACANT, {5: 2}),
        ([(4, "added", -1), (5, "seat", -1)], VACANT, {5: 2}),
        ([(6, "spare", -1), (5, "spare", -1)], VACANT, {5: 2}),
        ([(0, "spare", -1), (1, "returning", 2)], VACANT, {}),  # members already
    ],
)
def test_who_takes_the_one_empty_slot(knocks, third_slot, entered):
    view = admitted(THREE, knocks, [LIVING, LIVING, third_slot, LIVING])
    if not entered:
        assert view is None
        return
    assert view.members == tuple(sorted([*map(tuple, THREE), *entered.items()], key=lambda member: member[1]))
    assert view.entered == tuple(entered)
    assert (view.generation, view.windows, view.started, view.lost) == (3, 6, 3, ())
    assert view.reason == f"process {next(iter(entered))} entered"


def test_several_enter_at_once_each_where_it_belongs():
    view = admitted(
        [(0, 0)],
        [(9, "seat", -1), (8, "spare", -1), (3, "returning", 3), (7, "returning", 0)],
        [LIVING, VACANT, VACANT, RESERVED, VACANT, UNUSED],
        wanted=5,
    )
    assert view.members == ((0, 0), (7, 1), (8, 2), (3, 3), (9, 4))
    assert view.entered == (3, 7, 8, 9)


def test_nobody_enters_beyond_what_is_wanted():
    full = ((0, 0), (1, 1))
    slots = [LIVING, LIVING, VACANT, UNUSED]
    assert admitted(full, [(2, "returning", 2), (5, "spare", -1)], slots, wanted=2) is None
    view = admitted(full, [(2, "returning", 2), (5, "spare", -1)], slots, wanted=3)
    assert view.members == ((0, 0), (1, 1), (2, 2))
    assert admitted(full, [(5, "spare", -1)], slots, wanted=9, max_ranks=2) is None


def test_growth_takes_unused_slots_when_none_is_vacant():
    slots = [LIVING, VACANT, UNUSED, UNUSED]
    knocks = [(4, "added", -1), (5, "added", -1), (6, "added", -1)]
    assert admitted([(0, 0)], knocks, slots, wanted=3).members == ((0, 0), (4, 1), (5, 2))
    assert admitted([(0, 0)], knocks, slots, wanted=9).members == ((0, 0), (4, 1), (5, 2), (6, 3))
    assert admitted([(0, 0)], knocks, slots, wanted=9, max_ranks=3).members == ((0, 0), (4, 1), (5, 2))
    assert admitted([(0, 0)], knocks, slots[:2], wanted=9).members == ((0, 0), (4, 1))


def test_the_place_of_a_process_that_was_set_aside_is_kept_for_it():
    slots = [LIVING, RESERVED, VACANT, UNUSED]
    spares = [(8, "spare", -1), (9, "spare", -1)]
    assert admitted([(0, 0)], spares, slots, wanted=3).members == ((0, 0), (8, 2))
    assert admitted([(0, 0)], [*spares, (1, "returning", 1)], slots, wanted=3).members == (
        (0, 0),
        (1, 1),
        (8, 2),
    )
    assert admitted([(0, 0)], spares, slots, wanted=4).members == ((0, 0), (8, 2), (9, 3))


def test_a_slot_that_a_member_holds_is_not_free_whatever_its_state_says():
    assert admitted([(0, 0), (1, 1)], [(5, "returning", 1)], [VACANT, VACANT]) is None
    assert admitted([(0, 0), (1, 1)], [(5, "returning", 1)], [VACANT, RESERVED, VACANT]).members[2] == (5, 2)


def test_a_slot_whose_loss_is_not_told_yet_is_not_free():
    assert admitted([(0, 0)], [(1, "returning", 1)], [LIVING, LIVING]) is None


def test_a_process_that_knocks_twice_enters_once():
    view = admitted([(0, 0)], [(5, "spare", -1), (5, "returning", 2)], [LIVING, VACANT, VACANT])
    assert view.members == ((0, 0), (5, 2))


def test_an_unknown_kind_of_knock_is_refused():
    with pytest.raises(ConfigError, match="'guest' is not one of returning, spare, seat, added"):
        admitted([(0, 0)], [(5, "guest", -1)], [LIVING, VACANT])
