"""`elche.DataLoader`: this rank's batches, exactly its share of each window.

PyTorch's own DataLoader does the loading, workers and all; `Lookahead` tells it what to load next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.utils.data
from numpy.typing import NDArray

from elche.errors import ConfigError, UsageError
from elche.policy.dispatch import EpochPool, Range
from elche.policy.weights import check_weight
from elche.training.job import MakePool
from elche.training.lookahead import Lookahead, NoEmptyBatch, SkipEmpty

if TYPE_CHECKING:
    from elche.training.window import WindowEngine


class DataLoader:
    """Deals the batches of a map-style dataset to the ranks, window by window, each sample once per epoch.

    Each `for` loop over it is the next epoch. It works for one `DistributedOptimizer`.

    Example:
        >>> loader = DataLoader(list(range(5)), batch_size=2)
        >>> loader.permutation(0), len(loader)
        ([0, 1, 2, 3, 4], 3)

    Attributes:
        dataset: what was given.
        batch_size: samples in a batch.
        epoch: number of the epoch that the next loop, or the loop under way, goes through.
        new_pool: returns the batches of a whole epoch, or of what is left of one, for so many slots.
    """

    dataset: Any
    batch_size: int
    epoch: int
    new_pool: MakePool

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        multiprocessing_context: Any = None,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
    ) -> None:
        """Prepare to load; nothing is loaded yet.

        Args:
            dataset: has `__len__` and `__getitem__`; the same on every rank.
            batch_size: samples in a batch, at least 1; the last of an epoch may be short.
            shuffle: visit the samples in an order drawn from (seed, epoch).
            seed: of the order, at least 0.
            drop_last: leave out the last `len(dataset) % batch_size` samples of each epoch's order.
            num_workers: processes that load ahead.
            collate_fn: as PyTorch's.
            pin_memory: as PyTorch's.
            prefetch_factor: as PyTorch's.
            persistent_workers: as PyTorch's.
            multiprocessing_context: as PyTorch's.
            worker_init_fn: as PyTorch's.
            timeout: as PyTorch's, in seconds.

        Raises:
            ConfigError: the dataset has no length or no samples, or a number is out of bounds.
        """
        _check_dataset(dataset)
        _check_settings(batch_size, shuffle, seed, drop_last, collate_fn)
        self.dataset, self.batch_size, self.epoch = dataset, batch_size, 0
        self._shuffle, self._seed, self._drop_last = shuffle, seed, drop_last
        self.new_pool = _pool_maker(dataset, batch_size, self._drop_last)
        self._engine: WindowEngine | None = None
        self._weight: Callable[[Any], float] | None = None
        self._lookahead = Lookahead()
        if callable(getattr(dataset, "__getitems__", None)):
            dataset = NoEmptyBatch(dataset)
        self._torch_loader = torch.utils.data.DataLoader(
            dataset,
            batch_sampler=self._lookahead,
            num_workers=num_workers,
            collate_fn=SkipEmpty(collate_fn),
            pin_memory=pin_memory,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            multiprocessing_context=multiprocessing_context,
            worker_init_fn=worker_init_fn,
            timeout=timeout,
        )

    def __len__(self) -> int:
        """Batches in an epoch, over all ranks: a rank's own number follows its speed."""
        return self.new_pool(1, None).num_batches

    def permutation(self, epoch: int) -> list[int]:
        """Return the sample ids in the order of an epoch.

        Depends on the dataset's length, `shuffle`, the seed and the epoch alone; needs no `init()`. Positions
        in the event log point into it.

        Args:
            epoch: its number, from 0.

        Returns:
            Every sample's index once.
        """
        _check_int("epoch", epoch, 0)
        ids: list[int] = self._order(epoch).tolist()
        return ids

    def set_epoch(self, epoch: int) -> None:
        """Let the next loop go through this epoch, on every rank."""
        _check_int("epoch", epoch, 0)
        self.epoch = epoch

    def describe(self) -> dict[str, Any]:
        """Return what must be equal on all ranks."""
        return {
            "len(dataset)": len(self.dataset),
            "batch_size": self.batch_size,
            "shuffle": self._shuffle,
            "seed": self._seed,
            "drop_last": self._drop_last,
        }

    def attach(self, engine: WindowEngine, weight: Callable[[Any], float] | None) -> None:
        """Let `engine` deal the batches.

        Args:
            engine: the optimizer's.
            weight: gives a collated batch's weight; None: its number of samples.
        """
        self.check_free()
        self._engine, self._weight = engine, weight
        engine.follow_loader(self)

    def check_free(self) -> None:
        """Refuse to work for a second optimizer: its windows would take the first one's batches."""
        if self._engine is not None:
            raise ConfigError("this DataLoader works for a DistributedOptimizer already; make one for each")

    def __iter__(self) -> Iterator[Any]:
        """Go through the next epoch: this rank's batches.

        Yields:
            Collated batches.

        Raises:
            UsageError: no `DistributedOptimizer` was given this loader.
        """
        engine = self._engine
        if engine is None:
            raise UsageError(
                "this DataLoader has no DistributedOptimizer (loader=...) to deal it batches; "
                "for evaluation use torch.utils.data.DataLoader"
            )
        pool = engine.begin_epoch(self.epoch)
        self._lookahead.begin(self._order(self.epoch), pool, engine)
        batches = iter(self._torch_loader)
        try:
            asked = time.perf_counter()
            while (wanted := engine.next_range()) is not None:
                batch = self._lookahead.fetch(wanted, batches)
                engine.hand_over(
                    wanted, self._weigh(engine, wanted, batch), 1e3 * (time.perf_counter() - asked)
                )
                yield batch
                asked = time.perf_counter()
        finally:
            if engine.plan is None:  # also where the loop was left by `break` after the last update
                self.epoch += 1

    def _weigh(self, engine: WindowEngine, wanted: Range, batch: Any) -> float:
        if self._weight is None:
            return float(wanted[1] - wanted[0])
        try:
            weight = self._weight(batch)
            return check_weight(weight.item() if isinstance(weight, torch.Tensor) else weight)
        except ConfigError as error:
            engine.fail(error)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if not self._shuffle:
            return np.arange(len(self.dataset), dtype=np.int64)
        return np.random.Generator(np.random.PCG64([self._seed, epoch])).permutation(len(self.dataset))


def _pool_maker(dataset: Any, batch_size: int, drop_last: bool) -> MakePool:
    """Return what makes the pool of an epoch, or of what is left of one, to be dealt to so many slots.

    It does not hold on to the loader: the engine has it, and PyTorch waits 5 s for each persistent worker of
    a loader that only the cyclic garbage collector can free.
    """
    return lambda world_size, left: EpochPool(
        len(dataset), batch_size, world_size, drop_last=drop_last, uncovered=left
    )


def _check_dataset(dataset: Any) -> None:
    if isinstance(dataset, torch.utils.data.IterableDataset):
        raise ConfigError(
            "dataset must be map-style, got an IterableDataset: samples that come in one order only cannot "
            "be dealt by speed; index them, or load them into a list"
        )
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ConfigError(f"dataset must have __getitem__ and __len__, got {type(dataset).__qualname__}")
    if len(dataset) < 1:
        raise ConfigError("dataset must hold at least 1 sample, got 0")


def _check_settings(batch_size: int, shuffle: bool, seed: int, drop_last: bool, collate_fn: Any) -> None:
    _check_int("batch_size", batch_size, 1)
    _check_int("seed", seed, 0)
    for name, value in (("shuffle", shuffle), ("drop_last", drop_last)):
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be True or False, got {value!r}")
    if collate_fn is not None and not callable(collate_fn):
        raise ConfigError(f"collate_fn must be a function of a list of samples, got {collate_fn!r}")


def _check_int(name: str, value: int, least: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}")
