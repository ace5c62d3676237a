from __future__ import annotations

import pytest

from elche.policy.apportion import largest_remainder, window_shares


@pytest.mark.parametrize(
    ("left", "counts", "ms_per_batch", "expected"),
    [
        (16, [2, 2, 4, 8], None, [2, 2, 4, 8]),
        (17, [2, 2, 4, 8], None, [2, 2, 4, 8]),
        (12, [2, 2, 4, 8], None, [2, 0, 3, 7]),  # largest remainder is [2, 1, 3, 6]
        (3, [1, 1, 1, 1], None, [1, 1, 1, 0]),  # policy "sync": a count of 1 keeps its batch
        (7, [4, 2, 1], None, [4, 2, 1]),
        (5, [4, 2, 1], None, [4, 0, 1]),  # 3, 1, 1
        (1, [4, 2, 1], None, [1, 0, 0]),  # no peer has one: it stays
        (2, [2, 2], None, [2, 0]),
        (3, [2, 2], None, [2, 1]),  # the peer is at its count: it cannot take
        (0, [2, 2], None, [0, 0]),
        (0, [2, 2], [1.0, 2.0], [0, 0]),
        (
            6,
            [8, 4],
            [10.0, 30.0],
            [4, 2],
        ),  # [5, 1] ends sooner, but slot 1 may not stay with one: [6, 0] does not
        (6, [4, 4], [10.0, 30.0], [4, 2]),  # [3, 3] would end after 90
        (8, [4, 4], [10.0, 30.0], [4, 4]),  # counts are never exceeded
        (6, [6, 3], [10.0, 20.0], [4, 2]),
        (6, [4, 4], [10.0, 0.0], [3, 3]),  # not measured: as fast as the counts say
        (6, [4, 4], [10.0, float("nan")], [3, 3]),
        (6, [4, 0, 4], [10.0, 0.0, 30.0], [4, 0, 2]),  # a dead slot needs no measurement
    ],
)
def test_window_shares(left, counts, ms_per_batch, expected):
    assert window_shares(left, counts, ms_per_batch) == expected


def test_a_lone_batch_goes_to_the_peer_that_ends_first():
    # largest remainder [1, 1, 2, 4]; slot 1 gives to slot 3 (5 * 1 ms), then slot 0 to slot 2 (3 * 2 ms).
    assert window_shares(8, [2, 2, 4, 8], [4.0, 4.0, 2.0, 1.0]) == [0, 0, 3, 5]


@pytest.mark.parametrize(
    ("total", "weights", "expected"),
    [
        (72, [71, 18, 15], [49, 13, 10]),
        (10, [1, 1, 2], [3, 2, 5]),
        (0, [3, 1], [0, 0]),
        (1, [1, 1, 1], [1, 0, 0]),
        (5, [0, 1, 0], [0, 5, 0]),
        (10**18 + 1, [1, 1], [5 * 10**17 + 1, 5 * 10**17]),
    ],
)
def test_largest_remainder(total, weights, expected):
    assert largest_remainder(total, weights) == expected


# Spans.
