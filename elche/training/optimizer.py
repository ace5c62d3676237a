"""`elche.DistributedOptimizer`: `step()` takes a batch's gradients and, at a window's end, updates."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from elche import world as worlds
from elche.config import Cadence
from elche.errors import ConfigError
from elche.policy.schedule import Schedule
from elche.policy.weights import lr_factor
from elche.training import amp
from elche.training.buffers import Buffers
from elche.training.gradients import Gradients
from elche.training.journal import Journal
from elche.training.loader import DataLoader
from elche.training.plan import Plan
from elche.training.replicas import Replicas, agree_on
from elche.training.window import WindowEngine

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)
Named = Iterable[tuple[str, nn.Parameter]]

# These evaluate the closure several times in a step, or want gradients in a form of their own.
REFUSED = {
    "LBFGS": "it evaluates its closure several times per step",
    "SparseAdam": "it takes sparse gradients only, and a mean over ranks is dense; use Adam",
}


def DistributedOptimizer(  # noqa: N802 - Horovod's name; it returns an instance of the optimizer's own class
    optimizer: OptimizerT,
    named_parameters: Named | None = None,
    *,
    loader: DataLoader | None = None,
    cadence: Cadence | None = None,
    model: nn.Module | None = None,
) -> OptimizerT:
    """Let `optimizer` train with all ranks; collective.

    Its `step()` takes the batch's gradients; on the last batch of this rank's share of a window it reduces
    them over the ranks, g = sum(weight * gradient) / sum(weight) over all batches, and does the update. It
    has three more attributes: `updated` (whether the last `step()` did an update), `num_updates`, and
    `window`, the current plan; and `report_loss(loss)`, for the event log.

    Args:
        optimizer: any of torch.optim's but those refused by name. It is changed in place and returned, so
            that schedulers made for it before go on working.
        named_parameters: `model.named_parameters()`; all of the optimizer's. None: they are numbered.
        loader: deals this rank its batches.
        cadence: how long windows are; None: `Cadence()`.
        model: whose buffers to keep equal. Where `named_parameters` comes straight from
            `model.named_parameters()` it need not be told.

    Returns:
        The optimizer, an instance of its own class still.

    Raises:
        ConfigError: an argument is refused; the text names it and the bound.
        MismatchError: the ranks have different models, data or settings; on all ranks.
    """
    world, cadence = worlds.current(), Cadence() if cadence is None else cadence
    model, named = _find_model(model, named_parameters), list(named_parameters or ())
    parts = agree_on(world.comm, lambda: _Parts.of(optimizer, named, loader, cadence, model, world.comm.size))
    schedule = Schedule(cadence, world.comm.size, gpus=world.gpus())
    Journal(world, schedule).run(parts.settings())
    engine = WindowEngine(
        world,
        cadence,
        schedule,
        parts.gradients,
        parts.buffers,
        parts.loader.new_pool,
        _Update(optimizer, cadence),
        Replicas(world.comm, optimizer, parts.buffers),
    )
    parts.loader.attach(engine, cadence.weight)
    _become_distributed(optimizer, engine)
    return optimizer


@dataclass(frozen=True)
class _Parts:
    """What this rank brings, checked: what must be equal on all ranks is in `describe()`."""

    optimizer: torch.optim.Optimizer
    loader: DataLoader
    cadence: Cadence
    gradients: Gradients
    buffers: Buffers

    @classmethod
    def of(
        cls,
        optimizer: torch.optim.Optimizer,
        named: Sequence[tuple[str, Tensor]],
        loader: DataLoader | None,
        cadence: Cadence,
        model: nn.Module | None,
        world_size: int,
    ) -> _Parts:
        """Check the user's arguments and lay out buckets."""
        _check_optimizer(optimizer)
        if not isinstance(cadence, Cadence):
            raise ConfigError(f"cadence must be an elche.Cadence, got {type(cadence).__qualname__}")
        loader = _checked_loader(loader, world_size)
        _check_model(model, cadence.sync_buffers)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = Gradients(parameters, _names(parameters, named))
        return cls(optimizer, loader, cadence, gradients, Buffers(model if cadence.sync_buffers else None))

    def describe(self) -> dict[str, Any]:
        """Return what must be equal on all ranks, by names the user knows."""
        return {
            "optimizer": type(self.optimizer).__qualname__,
            **{f"DataLoader's {name}": value for name, value in self.loader.describe().items()},
            **{f"Cadence's {name}": value for name, value in self.cadence.describe().items()},
            **self.gradients.describe(),
            **self.buffers.describe(),
        }

    def settings(self) -> dict[str, Any]:
        """Return the settings, for the event log."""
        return {
            "optimizer": type(self.optimizer).__qualname__,
            "loader": self.loader.describe(),
            "cadence": self.cadence.describe(),
            "num_parameters": sum(p.numel() for p in self.gradients.parameters),
        }


class _Distributed(torch.optim.Optimizer):
    """What a distributed optimizer does differently; mixed in before the optimizer's own class."""

    _engine: WindowEngine
    _updated = False
    _loss: float | Tensor | None = None
    _step_supports_amp_scaling = True  # so that a GradScaler calls step() for every batch, finite or not

    @property
    def updated(self) -> bool:
        """Whether the last `step()` was an update."""
        return self._updated

    @property
    def num_updates(self) -> int:
        """Committed updates so far."""
        return self._engine.num_updates

    @property
    def window(self) -> Plan | None:
        """The current window's plan; None between epochs."""
        return self._engine.plan

    def report_loss(self, loss: float | Tensor) -> None:
        """Tell the batch's mean loss, for the event log, before its `step()`."""
        self._loss = loss.detach() if isinstance(loss, Tensor) else loss

    def step(self, closure: Callable[[], Any] | None = None, *, grad_scaler: Any = None) -> Any:
        """Take the batch's gradients; on the last batch of the share reduce and update.

        Args:
            closure: evaluates the model once and returns the loss; None: the gradients are there.
            grad_scaler: given by a GradScaler's own `step`.

        Returns:
            The closure's loss.
        """
        self._opt_called = True  # what schedulers look at, who else would warn in a window's first batches
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
            self.report_loss(result)
        if grad_scaler is not None:
            amp.unscale(grad_scaler, self)
        loss, self._loss = self._loss, None
        self._updated = self._engine.step(loss)
        if grad_scaler is not None:
            amp.settle(grad_scaler, self, self._engine.skipped)
        self._engine.skipped.clear()
        return result

    def add_param_group(self, param_group: dict[str, Any]) -> None:  # noqa: ARG002
        """Refuse: the buckets of all ranks are laid out for the parameters there were."""
        raise ConfigError(
            "add_param_group() after DistributedOptimizer(): add all parameters before wrapping"
        )


# PyTorch would wrap this step, too: for step hooks, which fire at updates, in the class's own step; and for
# schedulers, to learn that it was called.
_Distributed.step.hooked = True  # type: ignore[attr-defined]
_Distributed.step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


class _Update:
    """The optimizer's own step on the mean gradients, at the learning rate for so many samples."""

    def __init__(self, optimizer: torch.optim.Optimizer, cadence: Cadence) -> None:
        self._optimizer, self._cadence = optimizer, cadence

    def __call__(self, samples: int) -> float:
        """Step, and return the first group's learning rate."""
        groups = self._optimizer.param_groups
        rates = [group["lr"] for group in groups]
        cadence = self._cadence
        factor = lr_factor(cadence.lr_scaling, samples, cadence.lr_reference_samples or 1)
        try:
            if factor != 1.0:
                for group, rate in zip(groups, rates, strict=True):
                    group["lr"] = rate * factor
            super(_Distributed, self._optimizer).step()  # type: ignore[misc]
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate
        return float(rates[0]) * factor


def _become_distributed(optimizer: torch.optim.Optimizer, engine: WindowEngine) -> None:
    """Put `_Distributed` before the optimizer's own class."""
    base = type(optimizer)
    optimizer.__class__ = type(base.__name__, (_Distributed, base), {"__module__": base.__module__})
    vars(optimizer).pop("step", None)  # a scheduler's wrapper around the plain step
    optimizer._engine = engine  # type: ignore[attr-defined]
    amp.expect_scaler()


def _find_model(model: nn.Module | None, named_parameters: Named | None) -> nn.Module | None:
    """The model that was given, or the one whose `named_parameters()` was, while it is fresh."""
    if model is None and inspect.isgenerator(named_parameters):
        model = inspect.getgeneratorlocals(named_parameters).get("self")
    return model if isinstance(model, nn.Module) else None


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__qualname__}")
    if isinstance(optimizer, _Distributed):
        raise ConfigError("this optimizer is a DistributedOptimizer already")
    name = type(optimizer).__name__
    if name in REFUSED:
        raise ConfigError(f"optimizer {name} is refused: {REFUSED[name]}")


def _checked_loader(loader: DataLoader | None, world_size: int) -> DataLoader:
    if not isinstance(loader, DataLoader):
        raise ConfigError(
            f"loader must be an elche.DataLoader, got {type(loader).__qualname__}: it deals batches by speed "
            "(Horovod's way, without a loader, is not built yet)"
        )
    loader.check_free()
    if len(loader.dataset) < world_size:
        raise ConfigError(
            f"dataset must hold a sample per rank, at least {world_size}, got {len(loader.dataset)}"
        )
    return loader


def _check_model(model: nn.Module | None, sync_buffers: bool) -> None:
    if model is None and sync_buffers:
        warnings.warn(
            "buffers such as BatchNorm's are not kept equal over ranks: pass model=, or "
            "named_parameters=model.named_parameters(); sync_buffers=False says that there are none to keep",
            RuntimeWarning,
            stacklevel=6,
        )
    for name, module in model.named_modules() if model is not None else ():
        if isinstance(module, nn.SyncBatchNorm):
            raise ConfigError(
                f"module {name} is a SyncBatchNorm, whose ranks must do equal numbers of batches; use "
                "BatchNorm: its buffers are averaged at each window's end"
            )


def _names(parameters: Sequence[Tensor], named: Sequence[tuple[str, Tensor]]) -> list[str]:
    """The parameters' names, in the optimizer's order; numbers where none were given."""
    if not named:
        return [f"#{index}" for index in range(len(parameters))]
    seen: set[str] = set()
    for name, _ in named:
        if name in seen:
            raise ConfigError(f"named_parameters holds the name {name!r} twice")
        seen.add(name)
    names = {id(parameter): name for name, parameter in named}
    missing = [index for index, parameter in enumerate(parameters) if id(parameter) not in names]
    if missing:
        raise ConfigError(
            f"named_parameters lacks {len(missing)} of the optimizer's {len(parameters)} parameters, "
            f"the first is number {missing[0]} of shape {tuple(parameters[missing[0]].shape)}"
        )
    return [names[id(parameter)] for parameter in parameters]
