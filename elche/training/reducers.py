"""Chooses what sums the buckets over the ranks, anew for each communicator, by what all ranks have told."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from elche.comm import nccl_ready
from elche.comm.base import Comm
from elche.comm.nccl import NcclComm
from elche.comm.nccl_ready import Ready
from elche.training import streams
from elche.training.buckets import Bucket
from elche.training.host_reducer import HostReducer
from elche.training.nccl_wire import NcclWireReducer
from elche.training.reducer import AloneReducer, NcclReducer, Reducer
from elche.training.shared_reducer import Home, SharedReducer, can_share
from elche.training.wire import Wire
from elche.world import World

MOST_FAILURES = 3  # of NCCL in a row, on communicators that never summed, before it is given up


class Reducers:
    """Those of one rank's world, each for one user of it, in the order in which all ranks made them."""

    def __init__(self, world: World) -> None:
        """Begin without any.

        Args:
            world: the ranks.
        """
        self._world = world
        self._comm: Comm | None = None
        self._on_gpus: dict[object, Reducer] = {}  # of some rank: to be given back
        self._on_cpus: MutableMapping[object, Reducer] = WeakKeyDictionary()
        self._homes: MutableMapping[object, Home] = WeakKeyDictionary()
        self._num_shared = 0  # with the ranks there are now
        self._told: str | None = None
        self._num_failures = 0
        self._given_up: str | None = None

    @classmethod
    def of(cls, world: World) -> Reducers:
        """Return those of `world`."""
        if not isinstance(world.reducers, Reducers):
            world.reducers = cls(world)
        return world.reducers

    def prepare(
        self, user: object, buckets: Sequence[Bucket], wire: Wire | None, *, some_on_gpu: bool
    ) -> Reducer:
        """Return what sums the buckets of a user over the ranks there are now; collective.

        Args:
            user: whose they are; each has one of its own.
            buckets: this rank's, all on one device.
            wire: what they travel on; None: as they are.
            some_on_gpu: whether some rank's are on a GPU; all say the same.

        Returns:
            What was made before, as long as the ranks are the same.

        Raises:
            CommError: some rank is lost.
            ElcheError: this rank's GPU is stuck.
        """
        comm = self._world.comm
        if comm is not self._comm:
            self._end()
            self._comm = comm
        made, choose = (self._on_gpus, self._choose) if some_on_gpu else (self._on_cpus, self._choose_on_cpus)
        if user not in made:
            made[user] = choose(user, comm, buckets, wire)
        return made[user]

    def at_hand(self, user: object) -> Reducer | None:
        """Return what was prepared for a user and the ranks there are now, and can begin early.

        Args:
            user: whose buckets it sums.

        Returns:
            None where there is no such thing; so it is on all ranks then.
        """
        return self._on_gpus.get(user) if self._world.comm is self._comm else None

    def is_sole(self, user: object) -> bool:
        """Return whether sums of nobody else could get between a user's, in another order on each rank."""
        return [*self._on_gpus] == [user]

    def retire(self) -> None:
        """Begin to give back all, the oldest first; does not wait: one may hang on the kernel of another."""
        for reducer in (*self._on_gpus.values(), *self._on_cpus.values()):
            reducer.retire()

    def close(self) -> None:
        """Give back all before this process ends, and wait for that only for a moment."""
        for reducer in self._on_gpus.values():
            reducer.retire()
        for reducer in (*self._on_gpus.values(), *self._on_cpus.values()):
            reducer.close()
        for forgotten in (self._on_gpus, self._on_cpus, self._homes):
            forgotten.clear()

    def _end(self) -> None:
        """Give back all that was made for the ranks there were, and wait until that is done."""
        self.retire()
        for reducer in self._on_gpus.values():
            reducer.end()
            if isinstance(reducer, NcclReducer):
                self._note(reducer)
        for reducer in self._on_cpus.values():
            reducer.end()
        self._on_gpus.clear()
        self._on_cpus.clear()
        self._num_shared = 0

    def _note(self, reducer: NcclReducer) -> None:
        """Count failures in a row, so that the ranks do not begin again for ever."""
        if reducer.has_reduced:
            self._num_failures = 0
        if reducer.comm.failed is not None:
            self._num_failures += 1
        if self._num_failures >= MOST_FAILURES:
            self._given_up = f"NCCL has failed {self._num_failures} times in a row: {reducer.comm.failed}"

    def _choose_on_cpus(
        self, user: object, comm: Comm, buckets: Sequence[Bucket], wire: Wire | None
    ) -> Reducer:
        if comm.size == 1:
            return AloneReducer(wire)
        if wire is not None:
            return HostReducer(comm, one_by_one=True, wire=wire)
        if not can_share(comm) or self._world.environment.backend == "mpi":
            return HostReducer(comm, one_by_one=False)
        home = self._homes.setdefault(user, Home(buckets))
        reducer = SharedReducer(comm, home, f"sum-{self._num_shared}")
        self._num_shared += 1
        self._on_cpus[user] = reducer  # from here on it is to be given back
        if why := reducer.connect():
            self._tell(comm, f"gradients are summed over MPI, not in shared memory: {why}")
            return HostReducer(comm, one_by_one=False)
        return reducer

    def _choose(self, user: object, comm: Comm, buckets: Sequence[Bucket], wire: Wire | None) -> Reducer:
        if comm.size == 1:
            return AloneReducer(wire)
        device = buckets[0].own_n.device
        gpu = streams.gpu_of(device) if streams.is_gpu(device) else None
        cupy, reason = (None, None) if gpu is None else self._find(gpu.cuda)
        why = nccl_ready.agree(comm, Ready(gpu and gpu.identity, reason))
        if why is None and gpu is not None:
            nccl = NcclComm(cupy, comm, gpu.number)
            reducer = NcclReducer(nccl, device) if wire is None else NcclWireReducer(nccl, device, wire)
            self._on_gpus[user] = reducer  # from here on it is to be given back
            why = self._given_up = reducer.comm.connect()
            if why is None:
                return reducer
        self._tell(comm, f"gradients are summed through host memory, not by NCCL: {why}")
        return HostReducer(comm, one_by_one=True, wire=wire)

    def _find(self, cuda: str | None) -> tuple[Any, str | None]:
        if self._given_up is not None:
            return None, self._given_up
        if self._world.environment.backend == "mpi":
            return None, "ELCHE_BACKEND=mpi asks for it"
        return nccl_ready.find(cuda)

    def _tell(self, comm: Comm, what: str) -> None:
        """Say once why the faster way is not taken; all ranks know the same."""
        if what != self._told and comm.rank == 0:
            sys.stderr.write(f"elche: {what}\n")
        self._told = what
