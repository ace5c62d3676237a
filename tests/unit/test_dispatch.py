from __future__ import annotations

import gc
import tracemalloc

import pytest

from elche.errors import ConfigError, UsageError
from elche.policy.dispatch import EpochPool

COUNTS = [71, 18, 15]


def pool_with(num_batches, world_size=3):
    return EpochPool(num_batches, 1, world_size)


def sizes(window):
    return [len(batches) for batches in window]


# The facts of the original's tests.


def test_72_left_sum_to_72_and_nobody_is_left_with_one():
    assert sizes(pool_with(72).deal(COUNTS)) == [49, 13, 10]


def test_106_left_keep_the_fast_slot_at_its_count_and_the_pool_drains():
    pool = pool_with(106)
    assert sizes(pool.deal(COUNTS)) == [71, 18, 15]
    pool.commit()
    assert sizes(pool.deal(COUNTS)) == [2, 0, 0]
    pool.commit()
    assert pool.exhausted


def test_40_left_with_slot_1_dead_give_it_nothing():
    assert sizes(pool_with(40).deal(COUNTS, living=[True, False, True])) == [33, 0, 7]


def test_each_slot_takes_from_the_front_of_its_own_span():
    pool = EpochPool(70, 5, 3)  # 14 batches over 4, 2, 1: spans of 8, 4, 2
    assert pool.deal([4, 2, 1]) == (
        ((0, 5), (5, 10), (10, 15), (15, 20)),
        ((40, 45), (45, 50)),
        ((60, 65),),
    )
    pool.commit()
    assert pool.deal([4, 2, 1]) == (
        ((20, 25), (25, 30), (30, 35), (35, 40)),
        ((50, 55), (55, 60)),
        ((65, 70),),
    )
    pool.commit()
    assert pool.exhausted


def test_53_samples_over_4_2_1():
    pool = EpochPool(53, 8, 3)
    assert pool.deal([4, 2, 1]) == (
        ((0, 8), (8, 16), (16, 24), (24, 32)),
        ((32, 40), (40, 48)),
        ((48, 53),),
    )
    assert (pool.remaining, pool.exhausted, pool.uncovered()) == (0, False, ((0, 53),))
    pool.commit()
    assert (pool.remaining, pool.exhausted, pool.uncovered()) == (0, True, ())


def test_a_slot_without_span_takes_from_the_tail_of_the_longest():
    pool = EpochPool(100, 10, 3)
    pool.assign_spans([3, 1, 1])  # 0..60, 60..80, 80..100
    assert pool.deal([1, 1, 1]) == (((0, 10),), ((60, 70),), ((80, 90),))
    pool.commit()
    assert pool.deal([1, 1, 1]) == (((10, 20),), ((70, 80),), ((90, 100),))
    pool.commit()
    assert pool.deal([1, 1, 1]) == (((20, 30),), ((50, 60),), ((40, 50),))
    pool.commit()
    assert pool.deal([1, 1, 1]) == (((30, 40),), (), ())
    pool.commit()
    assert pool.exhausted


def test_the_lowest_slot_is_stolen_from_on_a_tie():
    pool = EpochPool(8, 1, 3)
    pool.assign_spans([1, 1, 0])  # 0..4, 4..8
    assert pool.deal([1, 1, 2])[2] == ((3, 4), (7, 8))


def test_a_dead_slots_span_is_stolen_from():
    pool = EpochPool(12, 1, 2)
    pool.assign_spans([1, 1])  # 0..6, 6..12
    alive = [True, False]
    assert pool.deal([4, 4], living=alive) == (((0, 1), (1, 2), (2, 3), (3, 4)), ())
    pool.commit()
    assert pool.deal([4, 4], living=alive) == (((4, 5), (5, 6), (11, 12), (10, 11)), ())
    pool.commit()
    assert pool.deal([4, 4], living=alive) == (((9, 10), (8, 9), (7, 8), (6, 7)), ())
    pool.commit()
    assert pool.exhausted


def test_spans_may_be_assigned_again_over_what_is_not_dealt():
    pool = EpochPool(16, 1, 2)
    pool.deal([3, 1])  # spans 0..12, 12..16
    pool.commit()
    pool.assign_spans([1, 1])  # over 3..12 and 13..16
    assert pool.peek(0, 99) == ((3, 4), (4, 5), (5, 6), (6, 7), (7, 8), (8, 9))
    assert pool.peek(1, 99) == ((9, 10), (10, 11), (11, 12), (13, 14), (14, 15), (15, 16))


def test_spans_of_living_slots_only():
    pool = EpochPool(9, 1, 3)
    pool.assign_spans([1, 1, 2], living=[True, False, True])
    assert (len(pool.peek(0, 99)), len(pool.peek(1, 99)), len(pool.peek(2, 99))) == (3, 0, 6)


def test_peek_changes_nothing_and_tells_what_is_dealt():
    pool = EpochPool(20, 2, 2)
    assert pool.peek(0, 3) == ()  # no spans yet
    pool.assign_spans([3, 2])
    assert pool.peek(0, 2) == pool.peek(0, 2) == ((0, 2), (2, 4))
    assert pool.peek(1, 9) == ((12, 14), (14, 16), (16, 18), (18, 20))
    assert pool.remaining == 10
    assert pool.deal([3, 2]) == (((0, 2), (2, 4), (4, 6)), ((12, 14), (14, 16)))
    assert pool.peek(0, 1) == ((6, 8),)


# Windows that lose a slot.


def test_what_a_lost_slot_gives_back_is_dealt_before_all_else():
    pool = EpochPool(24, 2, 3)  # spans 0..8, 8..16, 16..24
    assert pool.deal([2, 2, 2])[1] == ((8, 10), (10, 12))
    assert pool.remaining == 6
    assert pool.give_back([1]) == ((8, 10), (10, 12))
    assert pool.remaining == 8
    assert pool.uncovered() == ((0, 24),)
    pool.commit()
    assert pool.uncovered() == ((4, 16), (20, 24))
    assert pool.deal([3, 2, 2], living=[True, False, True]) == (
        ((8, 10), (10, 12), (4, 6)),
        (),
        ((20, 22), (22, 24)),
    )


def test_the_later_loss_comes_first():
    pool = EpochPool(8, 1, 2)
    pool.deal([2, 2])  # spans 0..4, 4..8
    assert pool.give_back([1]) == ((4, 5), (5, 6))
    assert pool.give_back([0]) == ((0, 1), (1, 2))
    pool.commit()
    assert pool.deal([3, 3])[0] == ((0, 1), (1, 2), (4, 5))


def test_a_window_in_which_all_were_lost_covers_nothing():
    pool = EpochPool(4, 1, 2)
    pool.deal([2, 2])
    assert pool.give_back([1, 0, 1]) == ((0, 1), (1, 2), (2, 3), (3, 4))
    assert not pool.exhausted
    pool.commit()
    assert pool.uncovered() == ((0, 4),)
    assert sizes(pool.deal([2, 2])) == [2, 2]


def test_giving_back_without_a_window_gives_nothing():
    pool = EpochPool(4, 1, 2)
    assert pool.give_back([0, 1]) == ()
    pool.deal([2, 2])
    pool.commit()
    assert pool.give_back([0, 1]) == ()
    assert pool.exhausted


def test_a_window_is_committed_once_and_before_the_next():
    pool = EpochPool(4, 1, 1)
    with pytest.raises(UsageError, match="no window is dealt"):
        pool.commit()
    pool.deal([2])
    with pytest.raises(UsageError, match="not committed"):
        pool.deal([2])
    assert pool.uncovered() == ((0, 4),)
    pool.commit()
    assert pool.uncovered() == ((2, 4),)
    with pytest.raises(UsageError, match="no window is dealt"):
        pool.commit()


# Odd sizes.


@pytest.mark.parametrize(
    ("num_samples", "drop_last", "batches"),
    [
        (0, False, []),
        (1, False, [(0, 1)]),
        (3, False, [(0, 3)]),
        (4, False, [(0, 4)]),
        (5, False, [(0, 4), (4, 5)]),
        (13, False, [(0, 4), (4, 8), (8, 12), (12, 13)]),
        (0, True, []),
        (3, True, []),
        (4, True, [(0, 4)]),
        (5, True, [(0, 4)]),
        (13, True, [(0, 4), (4, 8), (8, 12)]),
    ],
)
@pytest.mark.parametrize("world_size", [1, 2, 7])
def test_odd_sizes(num_samples, drop_last, batches, world_size):
    pool = EpochPool(num_samples, 4, world_size, drop_last=drop_last)
    assert pool.num_batches == pool.remaining == len(batches)
    dealt = []
    while not pool.exhausted:
        dealt += [batch for slot in pool.deal([1] * world_size) for batch in slot]
        pool.commit()
    assert sorted(dealt) == batches
    assert pool.uncovered() == ()
    assert pool.deal([1] * world_size) == ((),) * world_size
    assert pool.deal([1] * world_size) == ((),) * world_size  # it opened no window


def test_an_uncovered_rest_resumes_on_another_world_size():
    pool = EpochPool(30, 4, 5, uncovered=[(20, 30), (0, 4), (4, 7), (9, 9), (3, 3)])
    assert pool.num_batches == 5
    assert pool.uncovered() == ((0, 7), (20, 30))
    assert pool.deal([1] * 5) == (((0, 4),), ((4, 7),), ((20, 24),), ((24, 28),), ((28, 30),))
    dropping = EpochPool(30, 4, 1, uncovered=[(0, 7), (20, 30)], drop_last=True)
    assert dropping.uncovered() == ((0, 7), (20, 28))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((-1, 4, 2), "num_samples: -1 is below 0"),
        ((8, 0, 2), "batch_size: 0 is below 1"),
        ((8, 4, 0), "world_size: 0 is below 1"),
    ],
)
def test_wrong_sizes_are_named(arguments, text):
    with pytest.raises(ConfigError, match=text):
        EpochPool(*arguments)


@pytest.mark.parametrize(
    ("uncovered", "text"),
    [
        ([(0, 9)], r"\(0, 9\) is no range within 0..8"),
        ([(-1, 2)], r"\(-1, 2\)"),
        ([(3, 2)], r"\(3, 2\)"),
        ([(4, 8), (0, 5)], "position 4 is in two ranges"),
        ([(0, 8), (2, 3), (5, 6)], "position 2 is in two ranges"),
    ],
)
def test_wrong_ranges_are_named(uncovered, text):
    with pytest.raises(ConfigError, match=text):
        EpochPool(8, 4, 2, uncovered=uncovered)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda pool: pool.deal([1]), "counts: 1 values for 2 slots"),
        (lambda pool: pool.deal([1, -2]), "counts: -2 is below 0"),
        (lambda pool: pool.deal([0, 0]), "no living slot has a count above 0"),
        (lambda pool: pool.deal([1, 1], living=[True]), "living: 1 values for 2 slots"),
        (lambda pool: pool.deal([1, 0], living=[False, True]), "no living slot"),
        (lambda pool: pool.deal([1, 1], ms_per_batch=[1.0]), "ms_per_batch: 1 values for 2 slots"),
        (lambda pool: pool.assign_spans([1, 1, 1]), "counts: 3 values for 2 slots"),
        (lambda pool: pool.peek(2, 1), r"slot 2 is outside 0\.\.1"),
        (lambda pool: pool.peek(-1, 1), r"slot -1 is outside 0\.\.1"),
        (lambda pool: pool.peek(0, -1), "num_batches: -1 is below 0"),
        (lambda pool: pool.give_back([0, 2]), r"slot 2 is outside 0\.\.1"),
    ],
)
def test_wrong_arguments_are_named_and_change_nothing(call, text):
    pool = EpochPool(8, 4, 2)
    with pytest.raises(ConfigError, match=text):
        call(pool)
    assert pool.uncovered() == ((0, 8),)
    assert pool.deal([1, 1]) == (((0, 4),), ((4, 8),))


def test_a_large_epoch_takes_no_memory_of_its_size():
    gc.collect()
    tracemalloc.start()
    pool = EpochPool(10**12, 64, 4)
    pool.deal([2, 2, 4, 8])
    pool.commit()
    pool.give_back([0])
    assert pool.num_batches == 15_625_000_000
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 100_000
