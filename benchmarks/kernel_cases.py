"""The kernels' work and torch's ways to do the same, for bench_kernels.py.

Legend: `_n`, elements of a bucket; `_wn`, of w shards of n elements each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from elche import kernels
from elche.kernels import SlotLayout

Methods = dict[str, Callable[[], object]]

# Elements of each tensor: small layers, a ResNet-50's count and bytes, and a few large matrices.
MODELS = {
    "10 tensors, 0.1 MB": [16, 4096] * 5,
    "160 tensors, 26 MB": [64, 4096, 36_864, 123_000] * 40,
    "10 tensors, 105 MB": [2_621_440] * 10,
}
WEIGHT = 0.3
NUM_SHARDS = 4


class Case:
    """One model's gradients, its bucket, and a bucket without padding for rivals that concatenate."""

    def __init__(self, numels: Sequence[int], device: torch.device) -> None:
        draw = torch.Generator().manual_seed(3)
        self.grads = [torch.randn(shape_of(numel), generator=draw).to(device) for numel in numels]
        self.layout = SlotLayout.of(numels, torch.float32)
        self.bucket_n = torch.zeros(self.layout.total, device=device)
        self.views = self.layout.views(self.bucket_n, self.grads)
        self.dense_n = torch.zeros(sum(numels), device=device)
        self.other_n = torch.zeros_like(self.dense_n)
        self.weight = torch.tensor(WEIGHT, device=device) if device.type == "cuda" else WEIGHT
        self.num_elements = sum(numels)

    def scale_accumulate(self, accumulate: bool) -> None:
        """Set bucket (+)= weight * gradients, elche's way."""
        kernels.scale_accumulate_(
            self.bucket_n, self.layout, self.grads, self.weight, accumulate=accumulate, views=self.views
        )

    def unpack(self) -> None:
        """Set gradients = bucket, elche's way."""
        kernels.unpack_(self.grads, self.bucket_n, self.layout, 1.0, views=self.views)


def shape_of(numel: int) -> tuple[int, ...]:
    """Return what a layer of so many elements looks like: a bias, or a matrix of 32 rows."""
    return (numel,) if numel < 1024 or numel % 32 else (32, numel // 32)


def dense(case: Case) -> list[torch.Tensor]:
    """Return the gradients as flat aliases, which `torch.cat` needs."""
    return [grad.view(-1) for grad in case.grads]


def accumulating(case: Case) -> Methods:
    """Give the ways to bucket += weight * gradients; `_foreach_mul_` by 1, so that repeats do not vanish."""

    def foreach() -> None:
        torch._foreach_mul_(case.grads, 1.0)
        torch._foreach_add_(case.views, case.grads)

    def loop() -> None:
        for view, grad in zip(case.views, case.grads, strict=True):
            view.add_(grad, alpha=WEIGHT)

    return {
        "elche": lambda: case.scale_accumulate(True),
        "foreach": foreach,
        "loop": loop,
        "cat": lambda: case.dense_n.add_(torch.cat(dense(case)), alpha=WEIGHT),
        "flatten": lambda: case.dense_n.add_(torch._utils._flatten_dense_tensors(case.grads), alpha=WEIGHT),
    }


def overwriting(case: Case) -> Methods:
    """Give the ways to bucket = weight * gradients."""

    def foreach() -> None:
        torch._foreach_copy_(case.views, case.grads)
        torch._foreach_mul_(case.views, WEIGHT)

    def loop() -> None:
        for view, grad in zip(case.views, case.grads, strict=True):
            torch.mul(grad, WEIGHT, out=view)

    return {
        "elche": lambda: case.scale_accumulate(False),
        "foreach": foreach,
        "loop": loop,
        "cat": lambda: torch.cat(dense(case), out=case.dense_n).mul_(WEIGHT),
        "flatten": lambda: torch.mul(
            torch._utils._flatten_dense_tensors(case.grads), WEIGHT, out=case.dense_n
        ),
    }


def unpacking(case: Case) -> Methods:
    """Give the ways to gradients = 1 * bucket, so that repeats neither vanish nor overflow."""

    def foreach() -> None:
        torch._foreach_copy_(case.grads, case.views)
        torch._foreach_mul_(case.grads, 1.0)

    def loop() -> None:
        for view, grad in zip(case.views, case.grads, strict=True):
            torch.mul(view, 1.0, out=grad)

    def unflatten() -> None:
        parts = torch._utils._unflatten_dense_tensors(case.dense_n * 1.0, case.grads)
        torch._foreach_copy_(case.grads, parts)

    return {"elche": case.unpack, "foreach": foreach, "loop": loop, "unflatten": unflatten}


# What is measured, and the bytes that it moves per float32 element by the kernels' own model.
OPERATIONS: dict[str, tuple[Callable[[Case], Methods], int]] = {
    "accumulate": (accumulating, 12),
    "overwrite": (overwriting, 8),
    "unpack": (unpacking, 8),
}


def flat(case: Case) -> dict[str, tuple[Callable[[], object], int]]:
    """Give the flat functions with the bytes each moves per element."""
    x_n, y_n, v_n = (torch.randn_like(case.dense_n) for _ in range(3))
    wire_n = x_n.to(torch.bfloat16)
    shards_wn = torch.stack([wire_n] * NUM_SHARDS)
    weights_w = torch.full((NUM_SHARDS,), 1 / NUM_SHARDS, device=x_n.device)
    return {
        "cast_scale_ to bfloat16": (lambda: kernels.cast_scale_(wire_n, x_n, 0.5), 6),
        "cast_scale_ from bfloat16": (lambda: kernels.cast_scale_(y_n, wire_n, 0.5), 6),
        f"weighted_sum of {NUM_SHARDS} bfloat16": (
            lambda: kernels.weighted_sum(shards_wn, weights_w, out=y_n),
            2 * NUM_SHARDS + 4,
        ),
        "drift": (lambda: kernels.drift(x_n, y_n), 8),
        "outer_step_, Nesterov": (
            lambda: kernels.outer_step_(x_n, y_n, 0.7, momentum=0.9, velocity_n=v_n, nesterov=True),
            20,
        ),
        "lerp_": (lambda: kernels.lerp_(x_n, y_n, 0.3), 12),
    }
