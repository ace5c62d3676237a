"""What is told to CUDA's streams and events, by a recording fake of PyTorch's."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from elche.training import streams

DEVICE = torch.device("cuda", 1)


class FakeStream:
    def __init__(self, device, name="side"):
        self.device, self.name, self.cuda_stream = device, name, 0x5100

    def wait_stream(self, other):
        calls.append((self.name, "waits for", other.name))


class FakeEvent:
    def record(self, stream):
        self.stream = stream
        calls.append(("event", "behind", stream.name))

    def query(self):
        return self.stream.name


calls, current = [], ["current"]


@pytest.fixture(autouse=True)
def cuda(monkeypatch):
    @contextmanager
    def entered(stream):
        current.append(stream.name)
        yield
        current.pop()

    calls.clear()
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(device, "current"))


def test_a_mark_is_behind_what_is_in_the_current_stream():
    assert streams.mark(DEVICE)() == "current"
    assert streams.current_handle(DEVICE) == 0x5100
    assert calls == [("event", "behind", "current")]


class FakeTensor:
    def record_stream(self, stream):
        calls.append(("kept for", stream.name))

    def copy_(self, source, non_blocking):
        calls.append(("copy", source, non_blocking, "in", current[-1]))


def test_copies_wait_for_the_work_before_and_the_work_after_for_them():
    side = streams.beside(DEVICE)
    side.follow()
    is_done = side.copy(FakeTensor(), "what")
    side.lead()
    side.keep(FakeTensor(), FakeTensor())
    with side.entered():
        assert current == ["current", "side"]
    assert is_done() == "side"
    assert calls == [
        ("side", "waits for", "current"),
        ("copy", "what", True, "in", "side"),
        ("event", "behind", "side"),
        ("current", "waits for", "side"),
        ("kept for", "side"),
        ("kept for", "side"),
    ]


def test_a_cpu_has_no_streams():
    assert streams.beside(torch.device("cpu")) is None
    assert not streams.is_gpu(torch.device("cpu"))
    assert streams.is_gpu(DEVICE)


def test_graphs_are_captured_on_gpus_only(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert streams.is_capturing(DEVICE)
    assert not streams.is_capturing(torch.device("cpu"))
