"""`elche.DistributedOptimizer`: `step()` takes a batch's gradients and, at a window's end, updates."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from elche import world as worlds
from elche.config import Cadence
from elche.errors import ConfigError
from elche.policy.schedule import Schedule
from elche.policy.weights import lr_factor
from elche.training import amp
from elche.training.job import Job
from elche.training.journal import Journal
from elche.training.loader import DataLoader
from elche.training.parts import Named, Parts
from elche.training.plan import Plan
from elche.training.replicas import Replicas, agree_on
from elche.training.snapshot import Snapshot
from elche.training.window import WindowEngine
from elche.training.wire import Compression, WireFormat

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)


def DistributedOptimizer(  # noqa: N802 - Horovod's name; it returns an instance of the optimizer's own class
    optimizer: OptimizerT,
    named_parameters: Named | None = None,
    *,
    loader: DataLoader | None = None,
    cadence: Cadence | None = None,
    model: nn.Module | None = None,
    compression: WireFormat = Compression.none,
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
        compression: what gradients travel as: `elche.Compression.bf16` and `fp16` halve the bytes, by NCCL
            or through host memory; sums are float32. `.with_error_feedback()` adds what is rounded off to the
            next sum.

    Returns:
        The optimizer, an instance of its own class still.

    Raises:
        ConfigError: an argument is refused; the text names it and the bound.
        MismatchError: the ranks have different models, data or settings; on all ranks.
    """
    world, cadence = worlds.current(), Cadence() if cadence is None else cadence
    n = world.first_size  # whoever was lost since is taken out where all do so
    given = optimizer, named_parameters, loader, cadence, model, compression
    parts = agree_on(world, lambda: Parts.of(*given, n))
    num_slots = max(n, world.environment.max_ranks or n)
    living = [slot < n for slot in range(num_slots)]
    schedule = Schedule(cadence, num_slots, gpus=world.gpus(), living=living)
    job = Job(schedule, parts.loader.new_pool, world.slot)
    Journal(world, job).run(parts.settings())
    engine = WindowEngine(
        world,
        cadence,
        job,
        parts.gradients,
        parts.buffers,
        _Update(optimizer, cadence),
        Replicas(world, optimizer, parts.buffers),
        Snapshot(world, job, optimizer, parts.gradients, parts.buffers, parts.describe()),
    )
    parts.loader.attach(engine, cadence.weight)
    world.engine = world.engine or engine
    _become_distributed(optimizer, engine)
    if not world.inside:  # a spare's first epochs may be empty; its schedulers need not warn of that
        optimizer._opt_called = True  # type: ignore[attr-defined]
    return optimizer


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
        """Tell the batch's mean loss, one number, for the event log, before its `step()`."""
        if not _is_number(loss):
            self._engine.fail(ConfigError(f"loss must be a number or a tensor of one, got {loss!r}"))
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
            if _is_number(result):
                self.report_loss(result)
        if grad_scaler is not None:
            amp.unscale(grad_scaler, self)
        loss, self._loss = self._loss, None
        self._updated = self._engine.step(loss, scaled=grad_scaler is not None)
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


def _is_number(loss: Any) -> bool:
    return loss.numel() == 1 if isinstance(loss, Tensor) else isinstance(loss, Real)


class _Update:
    """The optimizer's own step on the mean gradients, at the learning rate for so many samples."""

    def __init__(self, optimizer: torch.optim.Optimizer, cadence: Cadence) -> None:
        self._optimizer, self._cadence = optimizer, cadence

    def __call__(self, samples: int) -> float:
        """Step, and return the first learning rate; 0 where the optimizer knows none."""
        optimizer, cadence = self._optimizer, self._cadence
        optimizer._opt_called = True  # type: ignore[attr-defined] # what schedulers look at
        rate = float(optimizer.param_groups[0].get("lr", 0.0))
        if cadence.lr_scaling == "none":
            super(_Distributed, optimizer).step()  # type: ignore[misc]
            return rate
        factor = lr_factor(cadence.lr_scaling, samples, cadence.lr_reference_samples or 1)
        rates = [(group, group["lr"]) for group in optimizer.param_groups]
        _set_rates([(group, rate * factor) for group, rate in rates])
        # Before all other hooks: a scheduler in one goes on from the script's own rates.
        hook = optimizer.register_step_post_hook(lambda *_: _set_rates(rates))
        optimizer._optimizer_step_post_hooks.move_to_end(hook.id, last=False)  # type: ignore[attr-defined]
        try:
            super(_Distributed, optimizer).step()  # type: ignore[misc]
        finally:
            hook.remove()
        return rate * factor


def _set_rates(rates: list[tuple[dict[str, Any], Any]]) -> None:
    for group, rate in rates:
        group["lr"] = rate


def _become_distributed(optimizer: torch.optim.Optimizer, engine: WindowEngine) -> None:
    """Put `_Distributed` before the optimizer's own class."""
    base = type(optimizer)
    optimizer.__class__ = type(base.__name__, (_Distributed, base), {"__module__": base.__module__})
    vars(optimizer).pop("step", None)  # a scheduler's wrapper around the plain step
    optimizer._engine = engine  # type: ignore[attr-defined]
    amp.expect_scaler()
