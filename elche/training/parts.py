"""What a rank brings to training: checked here, compared with the other ranks' before anything is joined."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from elche.config import Cadence
from elche.errors import ConfigError
from elche.training.buffers import Buffers
from elche.training.gradients import Gradients
from elche.training.loader import DataLoader
from elche.training.wire import WireFormat

Named = Iterable[tuple[str, nn.Parameter]]

# These evaluate the closure several times in a step, or want gradients in a form of their own.
REFUSED = {
    "LBFGS": "it evaluates its closure several times per step",
    "SparseAdam": "it takes sparse gradients only, and a mean over ranks is dense; use Adam",
}


@dataclass(frozen=True)
class Parts:
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
        named_parameters: Named | None,
        loader: DataLoader | None,
        cadence: Cadence,
        model: nn.Module | None,
        compression: WireFormat,
        world_size: int,
    ) -> Parts:
        """Check the user's arguments and lay out buckets."""
        model, named = _find_model(model, named_parameters), _checked_pairs(named_parameters)
        _check_optimizer(optimizer)
        if not isinstance(cadence, Cadence):
            raise ConfigError(f"cadence must be an elche.Cadence, got {type(cadence).__qualname__}")
        if cadence.lr_scaling != "none" and any("lr" not in group for group in optimizer.param_groups):
            raise ConfigError(
                f"lr_scaling={cadence.lr_scaling!r} needs an optimizer with a learning rate, 'lr'"
            )
        if not isinstance(compression, WireFormat):
            raise ConfigError(f"compression must be one of elche.Compression's, got {compression!r}")
        loader = _checked_loader(loader, world_size)
        _check_model(model, cadence.sync_buffers)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = Gradients(parameters, _names(parameters, named), compression)
        if torch.cuda.is_available() and gradients.device.type == "cpu":
            warnings.warn(
                "the model is on the CPU of a machine with a GPU: use model.to(elche.device()) before the "
                "optimizer is made, and move batches there",
                RuntimeWarning,
                stacklevel=6,
            )
        return cls(optimizer, loader, cadence, gradients, Buffers(model if cadence.sync_buffers else None))

    def describe(self) -> dict[str, Any]:
        """Return what must be equal on all ranks, by names the user knows."""
        return {
            "optimizer": type(self.optimizer).__qualname__,
            "compression": str(self.gradients.wire),
            "parameters by group": [len(group["params"]) for group in self.optimizer.param_groups],
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
            "compression": str(self.gradients.wire),
            "num_parameters": sum(p.numel() for p in self.gradients.parameters),
        }


def _find_model(model: nn.Module | None, named_parameters: Named | None) -> nn.Module | None:
    """The model that was given, or the one whose `named_parameters()` was, while it is fresh."""
    if model is not None:
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model must be a torch.nn.Module, got {type(model).__qualname__}")
        return model
    if inspect.isgenerator(named_parameters):
        model = inspect.getgeneratorlocals(named_parameters).get("self")
    return model if isinstance(model, nn.Module) else None


def _checked_pairs(named_parameters: Named | None) -> list[tuple[str, Tensor]]:
    wanted = "named_parameters must be model.named_parameters(), pairs of a name and a parameter, got "
    if named_parameters is not None and not isinstance(named_parameters, Iterable):
        raise ConfigError(f"{wanted}{type(named_parameters).__qualname__}")
    pairs = list(named_parameters or ())
    for pair in pairs:
        if not isinstance(pair, tuple) or not isinstance(pair[0], str) or not isinstance(pair[-1], Tensor):
            raise ConfigError(f"{wanted}one of {type(pair).__qualname__}")
    return pairs  # type: ignore[return-value]


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__qualname__}")
    if hasattr(optimizer, "_engine"):
        raise ConfigError("this optimizer is a DistributedOptimizer already")
    for kind in type(optimizer).__mro__:
        if kind.__name__ in REFUSED:
            raise ConfigError(f"optimizer {kind.__name__} is refused: {REFUSED[kind.__name__]}")


def _checked_loader(loader: DataLoader | None, world_size: int) -> DataLoader:
    if not isinstance(loader, DataLoader):
        raise ConfigError(
            f"loader must be an elche.DataLoader, got {_full_name(type(loader))}: it deals batches by speed "
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


def _full_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
