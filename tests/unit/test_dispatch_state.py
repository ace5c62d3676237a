"""A pool's state: what a joining rank loads is the same pool, in the middle of a window too."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elche.errors import ConfigError, UsageError
from elche.policy.dispatch import EpochPool
from elche.policy.pieces import Pieces


def through_json(pool):
    return json.loads(json.dumps(pool.state_dict()))


def test_dealt_is_the_open_window_without_what_was_given_back():
    pool = EpochPool(12, 2, 3)
    assert pool.dealt == ((), (), ())
    pool.deal([1, 1, 1])
    assert pool.dealt == (((0, 2),), ((4, 6),), ((8, 10),))
    pool.give_back([1])
    assert pool.dealt == (((0, 2),), (), ((8, 10),))
    pool.commit()
    assert pool.dealt == ((), (), ())


def test_a_restored_pool_has_the_open_window_and_what_was_given_back():
    pool = EpochPool(23, 2, 3)
    pool.deal([2, 1, 1])
    pool.give_back([0])
    other = EpochPool(23, 2, 3)
    other.deal([1, 1, 1])
    other.load_state_dict(through_json(pool))
    assert other.dealt == ((), ((12, 14),), ((18, 20),))
    assert (other.remaining, other.num_batches, other.uncovered()) == (10, 12, ((0, 23),))
    assert other.peek(0, 2) == ((4, 6), (6, 8))
    other.commit()
    assert other.deal([0, 2, 3]) == ((), ((0, 2), (2, 4)), ((20, 22), (22, 23), (10, 12)))


def test_loading_is_in_place_and_leaves_the_state_alone():
    pool, other = EpochPool(8, 1, 2), EpochPool(8, 1, 2)
    pool.deal([2, 2])
    state = pool.state_dict()
    kept = json.dumps(state)
    same = other
    other.load_state_dict(state)
    other.give_back([0, 1])
    other.commit()
    other.deal([3, 1])
    assert same.dealt == (((0, 1), (1, 2), (4, 5)), ((5, 6),))
    assert pool.dealt == (((0, 1), (1, 2)), ((4, 5), (5, 6)))
    pool.give_back([0])
    pool.commit()
    pool.deal([3, 1])
    assert json.dumps(state) == kept


@pytest.mark.parametrize(
    ("pool", "text"),
    [
        (EpochPool(8, 2, 3), "world_size: 3 in the state, 2 in this pool"),
        (EpochPool(8, 4, 2), "batch_size: 4 in the state, 2 in this pool"),
    ],
)
def test_another_shape_is_refused_and_changes_nothing(pool, text):
    other = EpochPool(8, 2, 2)
    other.deal([1, 1])
    with pytest.raises(ConfigError, match=text):
        other.load_state_dict(pool.state_dict())
    assert other.dealt == (((0, 2),), ((4, 6),))


def test_the_state_is_no_larger_for_a_larger_epoch():
    pool = EpochPool(10**12, 64, 4)
    pool.deal([2, 2, 4, 8])
    assert len(json.dumps(pool.state_dict())) < 1000


def outcome(pool, method, *args):
    """What a call returns, or how it refuses: a window that was given back whole is open still."""
    try:
        return getattr(pool, method)(*args)
    except UsageError as error:
        return str(error)


class Twins:
    """A pool and one that was restored from its state, told the same."""

    def __init__(self, data, pool):
        self.draw, self.pool = data.draw, pool
        self.world_size = len(pool.dealt)
        self.twin = None

    def restore(self):
        state = through_json(self.pool)
        self.twin = EpochPool(state["batch_size"] * 3, state["batch_size"], self.world_size)
        self.twin.load_state_dict(state)

    def both(self, method, *args):
        told = outcome(self.pool, method, *args)
        if self.twin is not None:
            assert outcome(self.twin, method, *args) == told
            assert self.twin.state_dict() == self.pool.state_dict()
            assert (self.twin.dealt, self.twin.exhausted) == (self.pool.dealt, self.pool.exhausted)
            assert self.twin.uncovered() == self.pool.uncovered()

    def counts(self):
        one_each = st.lists(st.integers(0, 5), min_size=self.world_size, max_size=self.world_size)
        return self.draw(one_each.filter(any), "counts")

    def deal(self):
        self.both("deal", self.counts())

    def commit(self):
        self.both("commit")

    def give_back(self):
        slots = self.draw(st.lists(st.integers(0, self.world_size - 1), max_size=2), "slots")
        self.both("give_back", slots)

    def assign(self):
        self.both("assign_spans", self.counts())

    def peek(self):
        self.both("peek", self.draw(st.integers(0, self.world_size - 1)), 3)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 80), st.integers(1, 7), st.integers(1, 4), st.booleans())
def test_a_restored_pool_goes_on_as_the_one_it_was_taken_from(
    data, num_samples, batch_size, world_size, drop_last
):
    twins = Twins(data, EpochPool(num_samples, batch_size, world_size, drop_last=drop_last))
    names = st.sampled_from(["deal", "deal", "commit", "give_back", "assign", "peek"])
    for _ in range(data.draw(st.integers(0, 8), "before")):
        getattr(twins, data.draw(names, "event"))()
    twins.restore()
    for _ in range(12):
        getattr(twins, data.draw(names, "event"))()


@given(st.lists(st.integers(1, 9), max_size=8), st.integers(1, 5), st.data())
def test_batches_of_pieces_are_those_cut_one_by_one(lengths, batch_size, data):
    pieces, position = [], 0
    for length in lengths:
        pieces.append((position + 1, position + 1 + length))
        position += length + 1
    batches = [
        (start, min(start + batch_size, stop))
        for begin, stop in pieces
        for start in range(begin, stop, batch_size)
    ]
    cut = Pieces(pieces, batch_size)
    assert cut.num_batches == len(batches)
    first = data.draw(st.integers(0, len(batches)))
    last = data.draw(st.integers(first, len(batches)))
    assert cut.batches(first, last) == batches[first:last]
