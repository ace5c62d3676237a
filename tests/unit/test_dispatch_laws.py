"""The laws of dispatch, for random sizes, speeds, deaths, joins, changes of schedule and resumes."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from elche.policy.apportion import largest_remainder, least_makespan, window_shares
from elche.policy.dispatch import EpochPool

MS = st.sampled_from([0.5, 1.0, 2.0, 3.0, 7.0, 10.0])


def makespan(shares, ms_per_batch):
    return max(share * ms for share, ms in zip(shares, ms_per_batch, strict=True))


def all_deals(total, counts):
    return [deal for deal in itertools.product(*(range(count + 1) for count in counts)) if sum(deal) == total]


@st.composite
def final_windows(draw, max_slots=5, max_count=9):
    """What is left, counts (some dead) and speeds of a final window."""
    counts = draw(st.lists(st.integers(0, max_count), min_size=1, max_size=max_slots).filter(any))
    left = draw(st.integers(1, sum(counts)))
    return left, counts, draw(st.lists(MS, min_size=len(counts), max_size=len(counts)))


@given(st.integers(0, 10**9), st.lists(st.integers(0, 10**6), min_size=1, max_size=9).filter(any))
def test_largest_remainder_sums_up_and_stays_within_one_of_the_quota(total, weights):
    parts = largest_remainder(total, weights)
    assert sum(parts) == total
    assert all(
        abs(part * sum(weights) - total * weight) < sum(weights)
        for part, weight in zip(parts, weights, strict=True)
    )


@given(final_windows(max_slots=4, max_count=4))
def test_no_split_has_a_smaller_makespan(window):
    total, counts, ms_per_batch = window
    deals = all_deals(total, counts)
    found = least_makespan(total, counts, ms_per_batch)
    assert tuple(found) in deals
    assert makespan(found, ms_per_batch) == min(makespan(deal, ms_per_batch) for deal in deals)


@given(final_windows(), st.booleans())
def test_a_final_window_drains_within_counts_and_leaves_no_batch_alone(window, measured):
    left, counts, ms_per_batch = window
    shares = window_shares(left, counts, ms_per_batch if measured else None)
    assert sum(shares) == left
    assert all(0 <= share <= count for share, count in zip(shares, counts, strict=True))
    for slot, share in enumerate(shares):
        if share == 1 < counts[slot]:
            peers = [peer for peer, has in enumerate(shares) if peer != slot and has]
            assert all(shares[peer] == counts[peer] for peer in peers)


@given(final_windows())
def test_speeds_never_make_a_final_window_longer(window):
    left, counts, _ = window
    by_counts = [1 / count if count else 0.0 for count in counts]
    unmeasured = window_shares(left, counts)
    assert unmeasured == window_shares(left, counts, [0.0] * len(counts))
    assert makespan(window_shares(left, counts, by_counts), by_counts) <= makespan(unmeasured, by_counts)


@given(st.integers(0, 60), st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any))
def test_before_the_final_window_shares_are_counts(more, counts):
    assert window_shares(sum(counts) + 1 + more, counts) == counts


class Epoch:
    """A pool driven by random events, with its own account of which positions are covered."""

    def __init__(self, data, num_samples, batch_size, drop_last):
        self.draw = data.draw
        self.num_samples, self.batch_size, self.drop_last = num_samples, batch_size, drop_last
        self.covered = [0] * num_samples
        self.start(None)

    def start(self, uncovered):
        world_size = self.draw(st.integers(1, 6), "world_size")
        self.pool = EpochPool(
            self.num_samples, self.batch_size, world_size, drop_last=self.drop_last, uncovered=uncovered
        )
        self.living = [True] * world_size
        self.change_counts()

    def change_counts(self):
        size = len(self.living)
        self.counts = self.draw(st.lists(st.integers(1, 6), min_size=size, max_size=size), "counts")
        self.ms_per_batch = self.draw(st.none() | st.lists(MS, min_size=size, max_size=size), "ms_per_batch")

    def join(self):
        self.living[self.draw(st.integers(0, len(self.living) - 1), "joins")] = True

    def assign(self):
        self.pool.assign_spans(self.counts, self.living)

    def resume(self):
        uncovered = self.pool.uncovered()
        assert list(uncovered) == self.gaps()
        self.start(uncovered)

    def gaps(self):
        end = self.num_samples - self.num_samples % self.batch_size if self.drop_last else self.num_samples
        runs = itertools.groupby(range(end), key=lambda position: self.covered[position])
        positions = [list(run) for covered, run in runs if not covered]
        return [(run[0], run[-1] + 1) for run in positions]

    def window(self):
        pool, living = self.pool, self.living
        size = len(living)
        returned = pool.remaining - sum(len(pool.peek(slot, 10**6)) for slot in range(size))
        front = [pool.peek(slot, 10**6) for slot in range(size)]
        remaining, in_sum = pool.remaining, sum(itertools.compress(self.counts, living))
        window = pool.deal(self.counts, living=living, ms_per_batch=self.ms_per_batch)

        assert sum(map(len, window)) == remaining - pool.remaining == min(remaining, in_sum)
        assert all(len(batches) <= count for batches, count in zip(window, self.counts, strict=True))
        assert all(not batches for batches, lives in zip(window, living, strict=True) if not lives)
        assert all(1 <= stop - start <= self.batch_size for batches in window for start, stop in batches)
        if not returned:
            for batches, ahead in zip(window, front, strict=True):
                own = min(len(batches), len(ahead))
                assert batches[:own] == ahead[:own]  # its own span first: what a loader has prefetched
        dead = [slot for slot in range(size) if living[slot] and self.draw(st.integers(0, 9), "dies") == 0]
        if len(dead) == sum(living):
            dead.pop()
        back = pool.give_back(dead)
        assert list(back) == sorted(batch for slot in dead for batch in window[slot])
        pool.commit()
        for slot, batches in enumerate(window):
            if slot in dead:
                living[slot] = False
                continue
            for start, stop in batches:
                for position in range(start, stop):
                    self.covered[position] += 1
        assert list(pool.uncovered()) == self.gaps()


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 150), st.integers(1, 9), st.booleans())
def test_each_position_is_committed_once_whatever_happens(data, num_samples, batch_size, drop_last):
    epoch = Epoch(data, num_samples, batch_size, drop_last)
    events = {
        "window": epoch.window,
        "counts": epoch.change_counts,
        "join": epoch.join,
        "assign": epoch.assign,
    }
    events["resume"] = epoch.resume
    names = st.sampled_from(["window"] * 5 + ["counts", "join", "assign", "resume"])
    while not epoch.pool.exhausted:
        events[data.draw(names, "event")]()
    dropped = num_samples % batch_size if drop_last else 0
    assert epoch.covered == [1] * (num_samples - dropped) + [0] * dropped
    assert epoch.pool.uncovered() == ()


@given(
    st.integers(0, 500),
    st.integers(1, 9),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
)
def test_spans_are_contiguous_in_slot_order_and_proportional(num_samples, batch_size, counts):
    pool = EpochPool(num_samples, batch_size, len(counts))
    pool.assign_spans(counts)
    spans = [pool.peek(slot, 10**6) for slot in range(len(counts))]
    batches = [batch for span in spans for batch in span]
    stops = [min(start + batch_size, num_samples) for start in range(0, num_samples, batch_size)]
    assert batches == list(zip(range(0, num_samples, batch_size), stops, strict=True))
    for span, count in zip(spans, counts, strict=True):
        assert abs(len(span) - pool.num_batches * count / sum(counts)) < 1


@given(st.integers(1, 9), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 9))
def test_with_a_steady_schedule_nobody_steals_before_the_last_windows(batch_size, counts, num_windows):
    pool = EpochPool(batch_size * sum(counts) * num_windows, batch_size, len(counts))
    pool.assign_spans(counts)
    for _ in range(num_windows):
        ahead = tuple(pool.peek(slot, count) for slot, count in enumerate(counts))
        assert pool.deal(counts) == ahead
        pool.commit()
    assert pool.exhausted


@given(st.data(), st.integers(1, 200), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_two_pools_told_the_same_deal_the_same(data, num_samples, counts):
    one, other = (EpochPool(num_samples, 3, len(counts)) for _ in range(2))
    while not one.exhausted:
        dies = data.draw(st.sampled_from([[], [0]]))
        assert one.deal(counts) == other.deal(list(counts))
        other.peek(0, 5)
        other.uncovered()
        assert one.give_back(dies) == other.give_back(dies)
        one.commit()
        other.commit()
