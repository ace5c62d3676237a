"""Tables of addresses: when they are uploaded, how, and for whom."""

from __future__ import annotations

import pytest
import torch

from elche.errors import ConfigError, UsageError
from elche.kernels import SlotLayout, tables

CPU = torch.device("cpu")


@pytest.fixture
def stream(monkeypatch):
    """What a launch believes of its stream: its handle, and whether a graph captures it."""
    state = {"handle": 1, "capturing": False}
    monkeypatch.setattr(tables, "current_stream", lambda _: (state["handle"], state["capturing"]))
    return state


@pytest.fixture
def uploads(monkeypatch):
    """Counts the tables that go to the device, in rows."""
    seen = []
    inner = tables._upload
    monkeypatch.setattr(
        tables, "_upload", lambda table, device: seen.append(len(table)) or inner(table, device)
    )
    return seen


def test_chunk_rows():
    """The docstring's example: slots of 3, 0 and 5 float32 elements, 4 to a chunk."""
    layout = SlotLayout.of([3, 0, 5], torch.float32)
    assert tables.chunk_rows(layout, chunk=4).tolist() == [[0, 0, 0, 3], [2, 0, 1, 4], [2, 4, 2, 1]]
    wider = SlotLayout.of([3, 0, 5], torch.float64)
    assert tables.chunk_rows(wider, chunk=4).tolist() == [[0, 0, 0, 3], [2, 0, 2, 4], [2, 4, 4, 1]]
    assert tables.chunk_rows(SlotLayout.of([], torch.float32)).tolist() == []


def test_chunk_rows_past_two_to_the_31():
    layout = SlotLayout.of([2**31 + 5, 1], torch.float32)
    rows = tables.chunk_rows(layout, chunk=2**30)
    assert rows.tolist() == [
        [0, 0, 0, 2**30],
        [0, 2**30, 2**28, 2**30],
        [0, 2**31, 2**29, 5],
        [1, 0, 2**29 + 2, 1],
    ]


def test_addresses_go_up_again_exactly_when_one_of_them_changed(uploads):
    layout = SlotLayout.of([5000, 7], torch.float32)
    kept, first, second = torch.zeros(5000), torch.zeros(7), torch.zeros(7)
    for given in ([kept, first], [kept, first]):
        tables.tables_of(layout, given, CPU)
    assert uploads == [4, 2]  # chunks of 2048, then the addresses
    for given in ([kept, second], [kept, second], [kept, None], [kept, second.half().float()]):
        tables.tables_of(layout, given, CPU)
    assert uploads == [4, 2, 2, 2, 2]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_more_or_fewer_tensors_than_slots_are_refused(count):
    layout = SlotLayout.of([4, 4], torch.float32)
    with pytest.raises(ConfigError, match=f"2 tensors.*not {count}"):
        tables.tables_of(layout, [torch.zeros(4)] * count, CPU)


def test_another_dtype_at_the_same_address_is_another_source(uploads):
    layout = SlotLayout.of([4], torch.float32)
    raw = torch.zeros(4)
    for given in (raw, raw.view(torch.complex64)):
        tables.tables_of(layout, [given], CPU)
    assert uploads == [1, 1]
    tables.tables_of(layout, [raw.view(torch.float16)[:4]], CPU)
    assert uploads == [1, 1, 1]


def test_each_stream_reads_what_it_uploaded_itself(stream, uploads):
    layout, given = SlotLayout.of([4], torch.float32), [torch.zeros(4)]
    mine = tables.tables_of(layout, given, CPU)
    stream["handle"] = 2
    other = tables.tables_of(layout, given, CPU)
    assert other is not mine
    assert uploads == [1, 1, 1, 1]
    stream["handle"] = 1
    assert tables.tables_of(layout, given, CPU) is mine


def test_a_graph_reads_tables_from_before_the_capture_and_they_are_kept(stream, uploads):
    layout, given = SlotLayout.of([4], torch.float32), [torch.zeros(4)]
    before = tables.tables_of(layout, given, CPU)
    stream.update(handle=2, capturing=True)
    assert tables.tables_of(layout, given, CPU) is before
    stream.update(handle=1, capturing=False)
    tables.tables_of(layout, [torch.zeros(4)], CPU)  # the gradient moved: the graph's table is replaced
    assert layout.captured == [before]
    assert uploads == [1, 1, 1]


def test_a_graph_may_not_capture_addresses_it_has_not_seen(stream, uploads):
    layout = SlotLayout.of([4], torch.float32)
    seen, moved = torch.zeros(4), torch.zeros(4)
    tables.tables_of(layout, [seen], CPU)
    stream["capturing"] = True
    with pytest.raises(UsageError, match="before the capture"):
        tables.tables_of(layout, [moved], CPU)
    assert uploads == [1, 1]


def test_a_graph_reads_no_other_device_s_tables(stream):
    layout = SlotLayout.of([4], torch.float32)
    tables.tables_of(layout, [None], CPU)
    stream["capturing"] = True
    with pytest.raises(UsageError, match="before the capture"):
        tables.tables_of(layout, [None], torch.device("meta"))


class Recorded:
    """A table that writes down what is done with it."""

    def __init__(self):
        self.calls = []

    def pin_memory(self):
        self.calls.append("pin_memory")
        return self

    def to(self, device, **settings):
        self.calls.append((str(device), settings))
        return self


def test_an_upload_goes_through_pinned_memory_and_is_not_awaited():
    table = Recorded()
    tables._upload(table, torch.device("cuda", 1))
    assert table.calls == ["pin_memory", ("cuda:1", {"non_blocking": True})]
