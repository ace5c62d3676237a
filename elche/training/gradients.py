"""The gradients of one optimizer's parameters, from each batch into the buckets and back as their mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import and_, or_
from typing import Any

import torch
from torch import Tensor

from elche.errors import ConfigError
from elche.training.buckets import Bucket, make_buckets
from elche.training.wire import Compression, WireFormat


class Gradients:
    """Sums weighted gradients over the batches of a window, in float32 (float64 for double precision).

    Attributes:
        parameters: the optimizer's, in the order of its groups.
        names: their names, in the same order.
        present: by parameter, whether some batch of the window gave it a gradient on this rank; after
            `totals()`.
        device: where they live; one for all.
        buckets: where their sums lie.
        wire: what their sums travel as.
    """

    parameters: list[Tensor]
    names: list[str]
    present: list[bool]
    device: torch.device
    buckets: list[Bucket]
    wire: WireFormat

    def __init__(
        self, parameters: Sequence[Tensor], names: Sequence[str], wire: WireFormat = Compression.none
    ) -> None:
        """Lay out buckets for `parameters`.

        Args:
            parameters: the optimizer's, each once.
            names: their names, for errors.
            wire: what their sums travel as.

        Raises:
            ConfigError: there are none, or they lie on more than one device.
        """
        if not parameters:
            raise ConfigError("the optimizer has 0 parameters, at least 1 is needed")
        devices = {parameter.device for parameter in parameters}
        if len(devices) > 1:
            raise ConfigError(
                f"the parameters of one rank must lie on one device, not {sorted(map(str, devices))}"
            )
        self.parameters, self.names, self.wire = list(parameters), list(names), wire
        self.device = parameters[0].device
        # The memory order of a slot: the parameter's own, made dense where the parameter is not.
        orders = [torch.empty_like(parameter, device="meta") for parameter in parameters]
        self._strides = [order.stride() for order in orders]
        self.buckets = make_buckets(
            [torch.empty_strided(o.shape, o.stride(), dtype=o.dtype, device=self.device) for o in orders]
        )
        self._had: list[bool] = [False] * len(parameters)  # a gradient, in the last batch
        self.begin()

    def describe(self) -> dict[str, Any]:
        """Return what must be equal on all ranks: each parameter's shape, memory order and dtype, by name."""
        return {
            f"parameter {name}": [list(p.shape), list(strides), str(p.dtype)]
            for name, p, strides in zip(self.names, self.parameters, self._strides, strict=True)
        }

    def begin(self) -> None:
        """Start a window: the first batch will overwrite what the last window left."""
        self.present = [False] * len(self.parameters)
        self._weights: list[float] = []
        self._samples: list[int] = []
        self._had_grads: list[list[bool]] = []  # by batch and parameter
        self._flags: list[Tensor] = []

    def accumulate(self, weight: float, samples: int, check: bool) -> None:
        """Add weight * gradient of every parameter that has one.

        Args:
            weight: the batch's, such as its number of samples.
            samples: in the batch.
            check: leave the batch out if any gradient is inf or nan.
        """
        grads = self._grads(range(len(self.parameters)))
        self._had = [grad is not None for grad in grads]
        self._had_grads.append(self._had)
        flag = self._flag(grads) if check else None
        for bucket in self.buckets:
            bucket.accumulate_(grads, weight, first=not self._weights, nonfinite=flag)
        self._weights.append(weight)
        self._samples.append(samples)

    def foresee(self, bucket: Bucket, weight: float) -> None:
        """Let `sum_n` of a bucket hold what `own_n` will, if `accumulate` takes the gradients there are now.

        Args:
            bucket: one of `buckets`.
            weight: the batch's.
        """
        bucket.foresee_(self._grads(bucket.indices), weight, first=not self._weights)

    def expected(self) -> list[bool]:
        """Return, by parameter, whether backward is expected to give it a gradient: as in the last batch."""
        trained = [parameter.requires_grad and parameter.is_leaf for parameter in self.parameters]
        return list(map(and_, self._had, trained))

    def there(self) -> list[bool]:
        """Return, by parameter, whether it has a gradient now."""
        return [parameter.grad is not None for parameter in self.parameters]

    def clear(self, had: Sequence[bool]) -> None:
        """Zero the gradients of the parameters that `had` one; take it from the others."""
        for parameter, zeroed in zip(self.parameters, had, strict=True):
            if not zeroed:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def nonfinite_names(self) -> list[str]:
        """Return the names of the parameters whose gradient now holds inf or nan; waits for the device."""
        pairs = zip(self.names, self.parameters, strict=True)
        return [name for name, p in pairs if p.grad is not None and not bool(p.grad.isfinite().all())]

    def totals(self) -> tuple[float, int, int]:
        """Sum up the batches that count, those that were not left out; waits for the device.

        Returns:
            Their weight, their samples, and how many were left out. `present` holds from here on.
        """
        flags = torch.cat(self._flags).tolist() if self._flags else [0.0] * len(self._weights)
        kept = [index for index, flag in enumerate(flags) if not flag]
        for index in kept:
            if not all(self.present):
                self.present = list(map(or_, self.present, self._had_grads[index]))
        weight = sum(self._weights[index] for index in kept)
        return float(weight), sum(self._samples[index] for index in kept), len(flags) - len(kept)

    def to_reduce(self) -> list[Bucket]:
        """Return the buckets, to be summed over the ranks; a rank without a batch has zeros in them."""
        if not self._weights:
            for bucket in self.buckets:
                bucket.clear_()
        return self.buckets

    def commit(self, present: Sequence[bool], scale: float, max_norm: float | None) -> None:
        """Give every parameter its mean gradient, scale * sum, clipped; None where no rank had one.

        Args:
            present: by parameter, whether some rank had a gradient.
            scale: 1 / total weight.
            max_norm: largest 2-norm of the whole mean gradient; None: no limit.
        """
        grads = self._targets(present)
        factor = scale if max_norm is None else self._clipped(scale, max_norm)
        for bucket in self.buckets:
            bucket.unpack_(grads, factor)

    def _grads(self, indices: Iterable[int]) -> list[Tensor | None]:
        """Return the gradients there are, each in its slot's memory order."""
        pairs = [(self.parameters[index].grad, self._strides[index]) for index in indices]
        return [
            grad if grad is None or _has_order(grad, strides) else _in_order(grad, strides)
            for grad, strides in pairs
        ]

    def _targets(self, present: Sequence[bool]) -> list[Tensor | None]:
        """Return the tensors that will hold the mean gradients: the parameters' own where they fit."""
        grads: list[Tensor | None] = []
        for parameter, strides, here in zip(self.parameters, self._strides, present, strict=True):
            grad = parameter.grad
            if not here:
                grad = parameter.grad = None
            elif grad is None or not _has_order(grad, strides):
                grad = parameter.grad = torch.empty_strided(
                    parameter.shape, strides, dtype=parameter.dtype, device=parameter.device
                )
            grads.append(grad)
        return grads

    def _clipped(self, scale: float, max_norm: float) -> Tensor:
        """Return scale * min(1, max_norm / norm); stays on the device."""
        norms = [torch.linalg.vector_norm(bucket.sum_n, dtype=torch.float64) for bucket in self.buckets]
        norm = torch.linalg.vector_norm(torch.stack(norms)) * scale
        return scale * torch.clamp(max_norm / (norm + 1e-6), max=1.0)

    def _flag(self, grads: Sequence[Tensor | None]) -> Tensor:
        """Return this batch's own flag, set if a gradient is not finite."""
        flag = torch.zeros(1, device=self.device)
        self._flags.append(flag)
        for bucket in self.buckets:
            bucket.flag_nonfinite_(flag, grads)
        return flag


def _has_order(grad: Tensor, strides: tuple[int, ...]) -> bool:
    return grad.layout is torch.strided and grad.stride() == strides and not grad.is_conj()


def _in_order(grad: Tensor, strides: tuple[int, ...]) -> Tensor:
    """A plain copy in its slot's memory order; a sparse gradient made dense, which averages the same."""
    grad = grad if grad.layout is torch.strided else grad.to_dense()
    return torch.empty_strided(grad.shape, strides, dtype=grad.dtype, device=grad.device).copy_(grad)
