"""Ranks as threads, a training loop as users write it, and the same windows in one plain PyTorch process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elche
from elche.comm import memory
from elche.policy.dispatch import Range
from elche.policy.schedule import Schedule

Windows = dict[int, tuple[tuple[Range, ...], ...]]  # by window, by slot: its batches
Loss = Callable[[nn.Module, Any], Tensor]

_dice = threading.Lock()


def ranks(n: int, script: Callable[..., Any], *args: Any, seconds: float = 30.0) -> list[Any]:
    """Run `script(rank, *args)` on n ranks, each in a world of its own; return the results in rank order."""

    def one(comm: Any) -> Any:
        elche.init(comm)
        try:
            result = script(comm.rank, *args)
        except BaseException:
            elche.shutdown("error", 1)
            raise
        elche.shutdown()
        return result

    return memory.run(n, one, timeout_seconds=seconds)


def errors(n: int, script: Callable[..., Any], *args: Any, seconds: float = 20.0) -> list[Exception]:
    """Run `script` as `ranks` does and return every rank's error; a rank without one fails the test."""

    def one(rank: int) -> Exception:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the test looks at type and text
            script(rank, *args)
        return caught.value

    return ranks(n, one, seconds=seconds)


def fix_counts(monkeypatch: pytest.MonkeyPatch, *windows: tuple[int, ...]) -> None:
    """Let every slot have so many batches, one tuple a window in turn, whatever was measured."""

    def counts(schedule: Schedule) -> list[int]:
        return list(windows[schedule.controller.calibration_count % len(windows)])

    monkeypatch.setattr(Schedule, "counts", counts)
    monkeypatch.setattr(Schedule, "ms_per_batch", lambda schedule: [0.0] * len(windows[0]))


def samples(n: int = 53, width: int = 3, dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    """Return n seeded samples (x, y), y of one number."""
    generator = torch.Generator().manual_seed(n)
    x, noise = (torch.randn(n, width, generator=generator) for _ in range(2))
    return list(zip(x.to(dtype), (x.sum(1, keepdim=True) + noise[:, :1]).to(dtype), strict=True))


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """Draw the same numbers at every call: PyTorch's generator is one for all threads."""
    with _dice, torch.random.fork_rng():
        torch.manual_seed(7)
        yield


class Squares(torch.utils.data.Dataset):
    """x = (i, i, i), y = i * i; can be sent to workers."""

    def __init__(self, n=23, bad=None):
        self.n, self.bad = n, bad

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i == self.bad:
            raise ValueError(f"sample {i} is broken")
        return torch.full((3,), float(i)) / 10, torch.tensor([float(i * i)]) / 100


class Batched(Squares):
    """A dataset that is asked for whole batches, and fails at an empty one."""

    def __getitems__(self, ids):
        xs, ys = (torch.stack(part) for part in zip(*(self[i] for i in ids), strict=True))
        return list(zip(xs, ys, strict=True))


def mlp(width: int = 3) -> nn.Sequential:
    """Return a small network, the same at every call."""
    with seeded():
        return nn.Sequential(nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, 1))


def squared(model: nn.Module, batch: Any) -> Tensor:
    """Return the mean squared error."""
    x, y = batch
    return (model(x) - y).square().mean()


def sgd(model: nn.Module, momentum: float = 0.9, weight_decay: float = 0.01) -> torch.optim.SGD:
    """Return plain PyTorch's optimizer for `model`."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)


def distribute(
    model: nn.Module, optimizer: torch.optim.Optimizer, dataset: Any, batch_size: int = 4, **cadence: Any
) -> tuple[torch.optim.Optimizer, elche.DataLoader]:
    """Wrap `optimizer`; return it and a loader for it."""
    loader = elche.DataLoader(dataset, batch_size)
    named = model.named_parameters()
    settings = elche.Cadence(**cadence)
    return elche.DistributedOptimizer(optimizer, named, loader=loader, cadence=settings), loader


def fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Any,
    loss: Loss = squared,
    epochs: int = 1,
    **settings: Any,
) -> Windows:
    """Train as a user does; return the windows this rank had batches in."""
    optimizer, loader = distribute(model, optimizer, dataset, **settings)
    windows: Windows = {}
    for _ in range(epochs):
        for batch in loader:
            windows[optimizer.window.index] = optimizer.window.ranges
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()
    return windows


def loop(model: nn.Module, optimizer: Any, loader: Any, after: Callable[[], object] = lambda: None) -> None:
    """Go through an epoch; call `after` after each step."""
    for batch in loader:
        optimizer.zero_grad()
        squared(model, batch).backward()
        optimizer.step()
        after()


def merged(windows_w: Iterable[Windows]) -> list[list[Range]]:
    """Return each window's batches, over all slots."""
    seen: dict[int, Any] = {}
    for windows in windows_w:
        seen.update(windows)
    return [[batch for batches in seen[index] for batch in batches] for index in sorted(seen)]


def replay(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Any,
    windows: Iterable[Iterable[Range]],
    loss: Loss = squared,
) -> None:
    """Train in one plain PyTorch process: a mean over all samples of a window, an update, the next."""
    for window in windows:
        total = sum(stop - start for start, stop in window)
        optimizer.zero_grad()
        for start, stop in window:
            batch = torch.utils.data.default_collate([dataset[i] for i in range(start, stop)])
            (loss(model, batch) * ((stop - start) / total)).backward()
        optimizer.step()


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of all parameters and buffers."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def assert_equal(*states: Mapping[str, Tensor]) -> None:
    """All states have the same bits."""
    for state in states[1:]:
        torch.testing.assert_close(dict(state), dict(states[0]), rtol=0, atol=0, equal_nan=True)


def assert_close(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], rtol: float = 2e-6) -> None:
    """Both states are equal to rounding, relative to each tensor's largest element."""
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        scale = float(tensor.abs().max()) if tensor.numel() else 0.0
        torch.testing.assert_close({name: state[name]}, {name: tensor}, rtol=rtol, atol=rtol * scale)


def same_as_one_process(
    make: Callable[[], tuple[nn.Module, torch.optim.Optimizer]],
    dataset: Any,
    loss: Loss = squared,
    *,
    n: int = 3,
    rtol: float = 2e-6,
    **settings: Any,
) -> list[list[Range]]:
    """Train on n ranks and, on the windows they had, in one process: all parameters must be the same.

    Returns the windows.
    """

    def script(rank: int) -> tuple[dict[str, Tensor], Windows]:
        model, optimizer = make()
        windows = fit(model, optimizer, dataset, loss, **settings)
        return state_of(model), windows

    outcomes = ranks(n, script)
    windows = merged(windows for _, windows in outcomes)
    model, optimizer = make()
    replay(model, optimizer, dataset, windows, loss)
    assert_equal(*(state for state, _ in outcomes))
    assert_close(outcomes[0][0], state_of(model), rtol)
    return windows
