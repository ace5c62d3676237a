"""An emulated rig and the ways to train on it: without communication, with torch DDP, with elche.

Runs inside mpirun's ranks. All ways train the same model on the same data and devices, each with a loader of
its own; what differs is who does how many samples, and the waiting.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import harness  # puts examples/ on the path

# isort: split
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from emulated import EmulatedDevice
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import elche

BATCH_SIZE = 8
# At speed 1; computing takes 0.3 ms of it, so that four ranks fit on two cores. Python runs up to seven times
# slower just after a sleep (0.03 ms become 0.2), unlike after computing: batches must be long beside that.
BATCH_SECONDS = 0.1
LEARNING_RATE = 0.05

At = Mapping[int, Callable[[], None]]  # what to do after which update, counted from 0
NOTHING: At = {}


@dataclass
class Track:
    """The updates of one run: when each was made, and of how many samples in all."""

    seconds: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)

    def add(self, samples: int) -> None:
        """Note an update of `samples` that was made just now."""
        self.seconds.append(time.perf_counter())
        self.samples.append(samples)

    def rate(self, first: int, last: int) -> float:
        """Return samples per second of the updates `first`..`last`; the one before them starts the clock."""
        return sum(self.samples[first : last + 1]) / (self.seconds[last] - self.seconds[first - 1])


def small_net() -> nn.Module:
    """Return a network whose batch takes far less than any emulated device."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


@dataclass
class Rig:
    """The devices of all ranks and this rank's own.

    Attributes:
        speeds: relative speeds by rank, now; `set_speed` changes them.
        anchor: batches of the slowest rank per update.
        make_net: what is trained: 64 numbers in, ten scores out.
    """

    speeds: list[float]
    anchor: int
    make_net: Callable[[], nn.Module] = small_net

    def __post_init__(self) -> None:
        """Meet the other ranks."""
        torch.set_num_threads(1)  # ranks share the cores
        elche.init()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.rank = elche.rank()
        meeting = f"file://{harness.worker_folder()}/gloo"
        dist.init_process_group("gloo", init_method=meeting, rank=self.rank, world_size=elche.size())
        self.device = EmulatedDevice(self._seconds_per_sample())

    def leave(self) -> None:
        """End what was begun to meet the others; gloo's threads would crash a process that ends without."""
        dist.barrier()
        dist.destroy_process_group()
        elche.shutdown()

    def _seconds_per_sample(self) -> float:
        return BATCH_SECONDS / BATCH_SIZE / self.speeds[self.rank]

    def set_speed(self, rank: int, speed: float) -> None:
        """Change the speed of `rank`; every rank calls this."""
        self.speeds[rank] = speed
        self.device.seconds_per_sample = self._seconds_per_sample()

    @property
    def samples_per_update(self) -> int:
        """What all ranks together do while the slowest does `anchor` batches."""
        return round(self.anchor * BATCH_SIZE * sum(self.speeds) / min(self.speeds))

    def equal_batches(self) -> list[int]:
        """Return lockstep DDP's batch sizes: the same for every rank."""
        return [round(self.samples_per_update / len(self.speeds))] * len(self.speeds)

    def tuned_batches(self) -> list[int]:
        """Return the expert's batch sizes: in proportion to the speeds."""
        return [round(self.anchor * BATCH_SIZE * speed / min(self.speeds)) for speed in self.speeds]

    def model(self, seed: int = 0) -> nn.Module:
        """Return a fresh model on this rank's device, equal on all ranks."""
        torch.manual_seed(seed)
        model = self.make_net()
        self.device.attach(model)
        return model

    def data(self, num_samples: int) -> TensorDataset:
        """Return random samples, equal on all ranks."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(num_samples, 64, generator=generator)
        return TensorDataset(x, torch.randint(10, (num_samples,), generator=generator))

    def rates(self, seconds: float) -> list[float]:
        """Return each rank's samples per second, all at their own batches for `seconds`, none waiting."""
        model, batches = self.model(), self._endless(BATCH_SIZE)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        dist.barrier()
        num_batches, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            x, y = next(batches)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            num_batches += 1
        rates: list[float] = [0.0] * len(self.speeds)
        dist.all_gather_object(rates, num_batches * BATCH_SIZE / (time.perf_counter() - started))
        return rates

    def ddp(self, batch_sizes: list[int], num_updates: int, at: At = NOTHING) -> Track:
        """Train with torch DDP, rank r on batches of `batch_sizes[r]`, each sample weighing the same.

        Args:
            batch_sizes: one for each rank.
            num_updates: how many updates to make, after a first one that is not timed.
            at: what to do after which update, counted from 0.

        Returns:
            The updates; number 0 is the untimed one.
        """
        model = DistributedDataParallel(self.model())
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        batches = self._endless(batch_sizes[self.rank])
        # DDP takes the mean over ranks: the sum of a rank's losses times this gives the mean over samples.
        weight = len(batch_sizes) / sum(batch_sizes)
        track = Track()
        dist.barrier()
        for update in range(num_updates + 1):
            x, y = next(batches)
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y, reduction="sum") * weight).backward()
            optimizer.step()
            track.add(sum(batch_sizes))
            if update in at:
                at[update]()
        return track

    def elche(self, num_samples: int, at: At = NOTHING) -> Track:
        """Train one epoch of `num_samples` with elche; `at` as in `ddp`, update 0 is the first."""
        model = self.model()
        loader = elche.DataLoader(self.data(num_samples), batch_size=BATCH_SIZE, shuffle=True)
        optimizer = elche.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
            named_parameters=model.named_parameters(),
            loader=loader,
            cadence=elche.Cadence(anchor=self.anchor),
        )
        track = Track()
        dist.barrier()
        planned = 0
        for x, y in loader:
            planned = planned or sum(b - a for share in optimizer.window.ranges for a, b in share)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if optimizer.updated:
                track.add(planned)
                if len(track.samples) - 1 in at:
                    at[len(track.samples) - 1]()
                planned = 0
        return track

    def _endless(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(self.data(2048), batch_size=batch_size, shuffle=True, drop_last=True)
        while True:
            yield from loader
