"""What happened, as frozen dataclasses: one JSON object a line in the event log.

`time_seconds` counts from the job's common start. Arrays in a `Window` are by slot. Field names are a
public contract (programs outside read them); units are in the names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class Event:
    """What every event carries: when, who wrote it, and in which generation."""

    event: ClassVar[str]
    time_seconds: float
    rank: int
    generation: int = 0


@dataclass(frozen=True, kw_only=True)
class Run(Event):
    """A job began to train."""

    event: ClassVar[str] = "run"
    world: int
    config: dict[str, Any]
    versions: dict[str, str]
    devices: list[str]
    backend: str


@dataclass(frozen=True, kw_only=True)
class Window(Event):
    """A window was committed; `ranges` are [slot, start, stop], positions in the epoch's permutation."""

    event: ClassVar[str] = "window"
    epoch: int
    window: int
    slots: list[int]
    counts: list[int]
    batches: list[int]
    samples: list[int]
    skipped: list[int]
    ranges: list[list[int]]
    weight_total: float
    loss: float | None
    anchor: int
    anchor_rank: int | None
    phase: str
    ms_per_batch: list[float]
    wall_ms: list[float]
    sync_ms: float
    fill_ms: list[float]
    verdict: str
    divergence: float | None
    lr: float
    updated: bool
    committed: bool = True


@dataclass(frozen=True, kw_only=True)
class Epoch(Event):
    """Every sample of an epoch is in a committed window."""

    event: ClassVar[str] = "epoch"
    epoch: int
    windows: int
    num_updates: int


@dataclass(frozen=True, kw_only=True)
class Resync(Event):
    """Parameters or optimizer state differed between ranks and were sent again from the lowest rank."""

    event: ClassVar[str] = "resync"
    window: int
    differing_ranks: list[int]
    same_devices: bool


@dataclass(frozen=True, kw_only=True)
class Lost(Event):
    """A rank is none any more: it "died", was "silent" and is set aside, or has "left".

    `rank` is the one it had; `returned` are its ranges that are dealt again.
    """

    event: ClassVar[str] = "lost"
    slot: int
    process: int
    cause: str
    detect_ms: float
    heal_ms: float
    returned: list[list[int]]


@dataclass(frozen=True, kw_only=True)
class Joined(Event):
    """A process holds a slot from now on; it took `sync_ms` to give it the job's state."""

    event: ClassVar[str] = "joined"
    slot: int
    process: int
    sync_ms: float


@dataclass(frozen=True, kw_only=True)
class SlotDead(Event):
    """A slot was empty for five windows: its speed is forgotten, anybody may take it."""

    event: ClassVar[str] = "slot_dead"
    slot: int


@dataclass(frozen=True, kw_only=True)
class Resume(Event):
    """A job that was started again goes on after `window` committed windows: later ones are trained again."""

    event: ClassVar[str] = "resume"
    epoch: int
    window: int


@dataclass(frozen=True, kw_only=True)
class Stop(Event):
    """The job ended."""

    event: ClassVar[str] = "stop"
    reason: str
    exit_code: int
