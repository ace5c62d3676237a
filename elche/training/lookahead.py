"""What a rank's workers should load next.

Which batches a rank gets is known only when the window before has closed, while workers must be asked ahead.
So they are asked for what the rank will most likely get: the rest of its share, then the front of its own
span. A wrong guess costs its loading and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import default_collate

from elche.policy.dispatch import EpochPool, Range

if TYPE_CHECKING:
    from elche.training.window import WindowEngine


class Lookahead:
    """A batch sampler for PyTorch's DataLoader that never ends: it asks for nothing when it has no guess.

    PyTorch asks it for one batch of indices per batch that it delivers, `num_workers * prefetch_factor`
    ahead, and delivers in the order in which it asked.
    """

    def begin(self, order: NDArray[np.int64], pool: EpochPool, engine: WindowEngine) -> None:
        """Start an epoch.

        Args:
            order: sample ids by position.
            pool: the epoch's batches.
            engine: knows the plan.
        """
        self._order, self._pool, self._engine = order, pool, engine
        self._asked: deque[Range | None] = deque()  # what PyTorch will deliver, in order
        self._loaded: dict[Range, Any] = {}  # delivered before it was wanted
        self._urgent: Range | None = None

    def __iter__(self) -> Iterator[list[int]]:
        """Yield sample ids of one batch after the other; an empty list where there is no guess."""
        while True:
            guess = self._guess()
            self._asked.append(guess)
            yield [] if guess is None else self._order[guess[0] : guess[1]].tolist()

    def fetch(self, wanted: Range, batches: Iterator[Any]) -> Any:
        """Return the batch of these positions.

        Args:
            wanted: positions of the batch.
            batches: PyTorch's iterator over this sampler.

        Returns:
            The collated batch.
        """
        if wanted not in self._loaded and wanted not in self._asked:
            self._urgent = wanted
        while wanted not in self._loaded:
            batch = next(batches)
            delivered = self._asked.popleft()
            if delivered is not None:
                self._loaded[delivered] = batch
        return self._loaded.pop(wanted)

    def _guess(self) -> Range | None:
        """Return the next batch this rank will most likely want and has not asked for."""
        if self._urgent is not None:
            urgent, self._urgent = self._urgent, None
            return urgent
        plan = self._engine.plan
        if plan is None:
            return None
        ahead = len(self._asked) + len(self._loaded) + 1
        for likely in (self._engine.open_share(), self._pool.peek(plan.slot, ahead)):
            for batch in likely:
                if batch not in self._loaded and batch not in self._asked:
                    return batch
        return None


class SkipEmpty:
    """A collate function that lets an empty batch through; can be sent to workers."""

    def __init__(self, collate: Callable[[list[Any]], Any] | None) -> None:
        self._collate = default_collate if collate is None else collate

    def __call__(self, items: list[Any]) -> Any:
        """Collate `items`; None for no items."""
        return self._collate(items) if items else None


class NoEmptyBatch:
    """A dataset with its own `__getitems__`, which meets no empty batch; can be sent to workers."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: list[int]) -> Any:
        """Return the samples, as the dataset itself does."""
        return self._dataset.__getitems__(indices) if indices else []

    def __getattr__(self, name: str) -> Any:
        """Look the rest up in the dataset: `get_worker_info().dataset` is this."""
        if name == "_dataset":  # before __init__, while it is unpickled
            raise AttributeError(name)
        return getattr(self._dataset, name)
