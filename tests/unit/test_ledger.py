from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elche.errors import ConfigError
from elche.policy.ledger import NUM_FIELDS, SlotReport, WindowLedger, window_report

ALL_LIVE = [True, True, True]


def report_of(*batches, exclude=()):
    """Report of (batch_ms, data_ms, samples, loss) batches; `exclude` maps batch numbers to ms."""
    ledger = WindowLedger()
    for number, batch in enumerate(batches):
        if number in exclude:
            ledger.exclude(exclude[number])
        ledger.record(*batch)
    return ledger.close()


def test_a_window_of_three_batches():
    report = report_of((10.0, 30.0, 8, 2.0), (11.0, 1.0, 8, 4.0), (12.0, 2.0, 4, 1.0))
    assert report == SlotReport(
        steps=3,
        samples=20,
        wall_ms=33.0,
        first_batch_ms=40.0,
        delivered_ms=26.0,
        loss_sum=52.0,
        loss_samples=20,
    )
    assert report.delivered_batches == 2
    assert report.fill_ms == 27.0  # 40 - 26 / 2


def test_an_empty_window_reports_zeros():
    report = WindowLedger().close()
    assert report == SlotReport(0, 0, 0.0, 0.0, 0.0, 0.0, 0)
    assert (report.delivered_batches, report.fill_ms) == (0, 0.0)


def test_a_lone_batch_has_no_delivered_sample_and_no_fill():
    report = report_of((10.0, 30.0, 8))
    assert (report.steps, report.wall_ms, report.first_batch_ms) == (1, 10.0, 40.0)
    assert (report.delivered_ms, report.delivered_batches, report.fill_ms) == (0.0, 0, 0.0)


def test_fill_is_never_negative():
    assert report_of((1.0, 0.0, 8), (10.0, 5.0, 8)).fill_ms == 0.0


def test_closing_begins_the_next_window():
    ledger = WindowLedger()
    ledger.record(10.0, 5.0, 8, 1.0)
    ledger.exclude(7.0)  # after the window's last batch: in no batch
    ledger.close()
    ledger.record(20.0, 1.0, 4, 3.0)
    assert ledger.close() == SlotReport(1, 4, 20.0, 21.0, 0.0, 12.0, 4)


def test_callback_time_is_in_neither_scale():
    batches = [(10.0, 1.0, 8), (110.0, 1.0, 8), (10.0, 1.0, 8)]
    assert report_of(*batches, exclude={1: 100.0}) == report_of(
        (10.0, 1.0, 8), (10.0, 1.0, 8), (10.0, 1.0, 8)
    )
    assert report_of(*batches, exclude={1: 100.0}).wall_ms == 30.0
    assert report_of((110.0, 1.0, 8), exclude={0: 100.0}).first_batch_ms == 11.0


def test_callbacks_in_one_batch_add_up_and_never_make_its_time_negative():
    ledger = WindowLedger()
    ledger.exclude(3.0)
    ledger.exclude(4.0)
    ledger.record(10.0, 1.0, 8)
    ledger.exclude(50.0)
    ledger.record(10.0, 1.0, 8)
    report = ledger.close()
    assert (report.wall_ms, report.first_batch_ms, report.delivered_ms) == (3.0, 4.0, 1.0)


def test_losses_that_are_unknown_or_not_finite_do_not_enter():
    report = report_of((1.0, 0.0, 8, 2.0), (1.0, 0.0, 8, math.nan), (1.0, 0.0, 8, math.inf), (1.0, 0.0, 8))
    assert (report.loss_sum, report.loss_samples, report.samples) == (16.0, 8, 32)


def test_the_row_has_its_fields_in_order():
    report = SlotReport(3, 20, 33.0, 40.0, 26.0, 52.0, 16)
    assert report.to_row() == [3.0, 20.0, 33.0, 40.0, 26.0, 52.0, 16.0]
    assert all(type(value) is float for value in report.to_row())
    assert NUM_FIELDS == 7


COUNT = st.integers(0, 2**53)
MS = st.floats(0, 1e12)


@given(st.builds(SlotReport, COUNT, COUNT, MS, MS, MS, st.floats(-1e12, 1e12), COUNT))
def test_a_report_survives_its_row(report):
    assert SlotReport.from_row(report.to_row()) == report


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ConfigError, match="row: 6 floats, not 7"):
        SlotReport.from_row([0.0] * 6)


def test_a_coherent_window_report():
    reports = [
        report_of((40.0, 5.0, 8), (42.0, 1.0, 8)),
        report_of((10.0, 9.0, 8), (10.0, 1.0, 8), (10.0, 2.0, 8)),
        report_of(),  # alive, but its share was zero
    ]
    report = window_report(reports, ALL_LIVE, sync_ms=3.5)
    assert list(report.wall_ms) == [82.0, 30.0, 0.0]
    assert list(report.steps) == [2, 3, 0]
    assert list(report.delivered_ms) == [43.0, 23.0, 0.0]
    assert list(report.delivered_batches) == [1, 2, 0]
    assert list(report.fill_ms) == [2.0, 7.5, 0.0]
    assert report.delivered_coherent is True
    assert report.sync_ms == 3.5


def test_a_lone_batch_on_a_living_slot_makes_the_report_incoherent():
    lone, more = report_of((40.0, 5.0, 8)), report_of((10.0, 9.0, 8), (10.0, 1.0, 8))
    report = window_report([more, lone, more], ALL_LIVE, sync_ms=0.0)
    assert report.delivered_coherent is False
    assert list(report.delivered_batches) == [1, 0, 1]


def test_batches_that_took_no_time_are_no_delivered_sample():
    timeless = report_of((4.0, 1.0, 8), (0.0, 0.0, 8))
    assert window_report([timeless], [True], sync_ms=0.0).delivered_coherent is False


def test_a_dead_slot_reports_zeros_and_does_not_spoil_coherence():
    lone, more = report_of((40.0, 5.0, 8)), report_of((10.0, 9.0, 8), (10.0, 1.0, 8))
    report = window_report(
        [more, lone, SlotReport(9, 9, math.nan, math.nan, math.nan)], [True, False, False], sync_ms=1.0
    )
    assert list(report.steps) == [2, 0, 0]
    assert list(report.wall_ms) == [20.0, 0.0, 0.0]
    assert list(report.delivered_ms) == [11.0, 0.0, 0.0]
    assert list(report.fill_ms) == [8.0, 0.0, 0.0]
    assert report.delivered_coherent is True


def test_reports_and_slots_must_match():
    with pytest.raises(ConfigError, match="reports: 1 for 2 slots"):
        window_report([SlotReport()], [True, True], sync_ms=0.0)
