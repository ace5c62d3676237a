"""`elche.elastic.TorchState`: what training consists of, by name: kept, written, taken up again."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elche.config import read_environment
from elche.elastic import checkpoint as checkpoints
from elche.elastic.trainer import FORMAT, Carried, Trainer
from elche.elastic.values import Untrained, Values, require_same_names
from elche.errors import ConfigError, MismatchError, UsageError

VALUES = "state.values"  # nothing else of a TorchState can be called so


class TorchState:
    """A model, its optimizer and whatever belongs to them, as one thing that outlives ranks and jobs.

    All of it reaches a rank that enters, and every checkpoint. What has `state_dict` and `load_state_dict`
    (schedulers, a GradScaler, a moving average) travels by them, everything else as a plain value; each is an
    attribute of the name it was given under, and a plain value may be set: `state.best = 0.9`.

    Of Horovod's methods `commit`, `save`, `restore` and `on_reset` do what they did; `sync` and
    `check_host_updates` have nothing left to do.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        checkpoint: str | Path | None = None,
        **objects: Any,
    ) -> None:
        """Take charge of what belongs to `optimizer`; not collective.

        Args:
            model: holds what the optimizer trains.
            optimizer: what `elche.DistributedOptimizer` returned.
            checkpoint: directory for the checkpoint of a job that is stopped; made where it is not there.
                None: ELCHE_CHECKPOINT; without either none is written.
            **objects: whatever else; `loader` is the optimizer's.

        Raises:
            ConfigError: one of them is refused; the text names it.
        """
        self._engine = _engine_of(optimizer)
        self._objects: dict[str, Any] = {"model": model, "optimizer": optimizer}
        self._values = Values()
        self._kept: dict[str, Any] | None = None
        self._standing: tuple[int, int, int] | None = None
        extras: dict[str, Carried] = {VALUES: self._values}
        if untrained := _untrained(model, optimizer):
            extras["model"] = Untrained(untrained)
        for name, value in objects.items():
            self._check_name(name)
            if name == "loader":
                self._objects[name] = _checked_loader(value, self._engine)
            elif _is_carried(name, value):
                self._objects[name] = extras[name] = value
            else:
                self._values[name] = value
        if taken := extras.keys() & self._engine.extras.keys():
            raise ConfigError(f"the optimizer has a TorchState already, which holds {sorted(taken)}")
        self._directory = _directory(checkpoint)
        self._engine.extras.update(extras)
        if self._directory is not None:
            # Not a method of this object, which holds the loader: in a cycle with the engine its workers
            # would end only when the collector comes by.
            self._engine.on_stop = partial(_write, self._engine, self._directory)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            for held in (self._objects, self._values):
                if name in held:
                    return held[name]
        raise AttributeError(f"this TorchState holds no {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        elif name in self._values:
            self._values[name] = value
        elif name in self._objects:
            raise ConfigError(f"{name} cannot be replaced: what was given to TorchState() is what travels")
        else:
            raise ConfigError(f"{name} would not travel: give it a first value, TorchState({name}=...)")

    def epochs(self, n: int) -> Iterator[int]:
        """Go through the epochs that are left of `n`, from where a checkpoint or the other ranks are.

        Args:
            n: how many epochs the whole training has.

        Returns:
            Their numbers. It ends early when all ranks have agreed to stop.

        Raises:
            ConfigError: `n` is no number of epochs.
            UsageError: an epoch was not trained, so that it would come again for ever.
        """
        if not isinstance(n, Integral) or isinstance(n, bool) or n < 0:
            raise ConfigError(f"n must be an integer of at least 0, got {n!r}")
        return self._epochs(int(n))

    def _epochs(self, n: int) -> Iterator[int]:
        engine = self._engine
        self._standing = None
        while (epoch := engine.next_epoch()) is not None and epoch < n:
            standing = epoch, engine.num_windows, engine.generation
            if standing == self._standing:
                raise UsageError(
                    f"epoch {epoch} came again: nothing was trained in it; loop over the DataLoader given to "
                    "DistributedOptimizer(loader=...), once for each epoch"
                )
            self._standing = standing
            yield epoch

    def save(self, path: str | Path | None = None) -> None:
        """Write a checkpoint of the last committed window; without a path keep a copy in memory.

        One rank writes; the others return at once. The file is written aside and renamed: it is whole or not
        there.

        Args:
            path: a file, or a directory that is there, in which the file is named after the windows there
                were. None:
                this rank keeps a copy in memory, for `restore()`.

        Raises:
            ConfigError: `path` is none, or something in the state cannot be pickled.
            OSError: the file cannot be written; what was there is as it was. On the rank that writes.
        """
        if path is not None:
            _write(self._engine, checkpoints.checked_path("path", path))
        else:
            self._kept = copy.deepcopy(self._engine.capture())

    def load(self, path: str | Path) -> TorchState:
        """Go on from a checkpoint, on any number of ranks; before training or between epochs.

        All ranks call it, and must find the same file. Reading one runs what is in it, as with every pickle:
        load only files you trust.

        Args:
            path: a file, or a directory of which the newest whole checkpoint is taken.

        Returns:
            This state.

        Raises:
            ConfigError: the file is damaged, of another format, model or other objects, or there
                is none. Nothing is changed then.
            UsageError: an epoch is under way.
        """
        path = checkpoints.checked_path("path", path)
        found = checkpoints.newest(path) if path.is_dir() else path
        if found is None:
            raise ConfigError(f"there is no whole checkpoint in {path}")
        state = checkpoints.read(found)
        if state.get("format") != FORMAT:
            raise ConfigError(
                f"{found} holds a state of format {state.get('format')!r}; "
                f"this version of elche reads {FORMAT}"
            )
        require_same_names(f"objects in {found}", state["extras"], self._engine.extras)
        try:
            self._restore(state)
        except MismatchError as error:
            raise ConfigError(f"{found} cannot be loaded: {error}") from error
        return self

    def commit(self) -> None:
        """Keep a copy in memory; where all ranks have agreed to stop, end the script instead.

        Raises:
            SystemExit: all ranks have agreed to stop.
        """
        if self._engine.stopping:
            raise SystemExit(self._engine.exit_code)
        self.save()

    def restore(self) -> None:
        """Go back to what the last `save()` or `commit()` kept; all ranks call it, between epochs.

        Raises:
            UsageError: nothing was kept, or an epoch is under way.
        """
        if self._kept is None:
            raise UsageError("restore() before the first save() or commit(): there is nothing to go back to")
        self._restore(copy.deepcopy(self._kept))

    def sync(self) -> None:
        """Do nothing: all ranks are equal after every window, and newcomers are made so when they enter."""

    def check_host_updates(self) -> None:
        """Do nothing: newcomers enter at a window's end, without the script's help."""

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Let functions be called, on each rank, after ranks were lost or came."""
        for callback in callbacks:
            if not callable(callback):
                raise ConfigError(f"callbacks must be functions without arguments, got {callback!r}")
        self._engine.reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Call what was registered by `register_reset_callbacks`."""
        for callback in self._engine.reset_callbacks:
            callback()

    def request_stop(self) -> None:
        """Let all ranks stop after the same window; one rank asking is enough. The job ends with 0."""
        self._engine.request_stop("the script asked for it", 0)

    def save_on_stop(self) -> None:
        """Write a checkpoint into the directory for it, if there is one; the engine does so at a stop."""
        if self._directory is not None:
            _write(self._engine, self._directory)

    def _restore(self, state: dict[str, Any]) -> None:
        self._standing = None
        self._engine.restore(state)

    def _check_name(self, name: str) -> None:
        if name.startswith("_") or not name.isidentifier() or hasattr(type(self), name):
            raise ConfigError(f"TorchState cannot call one of its objects {name!r}: the name is its own")


def _engine_of(optimizer: Any) -> Trainer:
    engine: Trainer | None = getattr(optimizer, "_engine", None)
    if not isinstance(optimizer, torch.optim.Optimizer) or engine is None:
        raise ConfigError(
            "optimizer must be what elche.DistributedOptimizer() returned, "
            f"got {type(optimizer).__qualname__}"
        )
    return engine


def _untrained(model: nn.Module | None, optimizer: Any) -> dict[str, Tensor]:
    """Return the parameters of `model` that the optimizer does not have, and so does not carry."""
    if model is None:
        return {}
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be a torch.nn.Module, got {type(model).__qualname__}")
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    parameters = dict(model.named_parameters())
    if trained.isdisjoint(map(id, parameters.values())):
        raise ConfigError("model has no parameter that optimizer trains: it is another model's")
    return {name: parameter for name, parameter in parameters.items() if id(parameter) not in trained}


def _checked_loader(loader: Any, engine: Trainer) -> Any:
    if loader is not None and getattr(loader, "_engine", None) is not engine:
        raise ConfigError("loader must be the one given to DistributedOptimizer(loader=...)")
    return loader


def _is_carried(name: str, value: Any) -> bool:
    if hasattr(getattr(value, "_engine", None), "capture"):
        raise ConfigError(
            f"{name} is a DistributedOptimizer, or its DataLoader: they go under the names optimizer and "
            "loader; a second optimizer needs a TorchState of its own"
        )
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _directory(checkpoint: str | Path | None) -> Path | None:
    """Return the directory for checkpoints, made; None: none is wanted."""
    wanted = read_environment().checkpoint if checkpoint is None else checkpoint
    if wanted is None:
        return None
    try:
        directory = checkpoints.checked_path("checkpoint", wanted)
        directory.mkdir(parents=True, exist_ok=True)
        writable = os.access(directory, os.W_OK | os.X_OK)
    except OSError as error:
        raise ConfigError(f"checkpoint must be a directory, got {wanted!r}: {error}") from error
    if not writable:
        raise ConfigError(f"checkpoint must be a directory that can be written to, got {wanted!r}")
    return directory


def _write(engine: Trainer, path: Path) -> None:
    """Write a checkpoint of the last committed window, on the rank that writes."""
    if engine.is_writer():
        target = path / checkpoints.file_name(engine.num_windows) if path.is_dir() else path
        checkpoints.write(target, checkpoints.pack(engine.capture()))
