"""The job's state on its way to newcomers: one blob from the lowest old member, compared by hash."""

from __future__ import annotations

import numpy as np

from elche.comm.base import Comm, broadcast_bytes
from elche.comm.group import Group
from elche.elastic.checkpoint import pack, unpack
from elche.errors import CommError, MismatchError
from elche.policy.membership import View
from elche.training.snapshot import Snapshot
from elche.world import World


class Transfer:
    """Sends and receives the state when a view lets processes in; all its members take part."""

    def __init__(self, world: World, group: Group, snapshot: Snapshot) -> None:
        self._world, self._group, self._snapshot = world, group, snapshot

    def send(self, view: View) -> None:
        """Give the newcomers of `view` the state, and see that it is the same.

        Args:
            view: the one that lets them in.

        Raises:
            CommError: somebody is lost, or a newcomer is not equal.
        """
        equal = True
        if self._group.process == _root(view):
            state = pack(self._snapshot.capture())
            comm = self._connect(view)
            broadcast_bytes(comm, state, root=0)
            equal = self._is_same(comm)
        if not self._world.comm.agree(equal):
            raise CommError(f"processes {list(view.entered)} differ from the others after the transfer")

    def receive(self, view: View) -> None:
        """Take over the others' state.

        Args:
            view: the one that lets this process in.

        Raises:
            CommError: somebody is lost, or this rank is not equal.
            MismatchError: this rank has another model, data or settings.
        """
        comm = self._connect(view)
        state = broadcast_bytes(comm, b"", root=0)
        try:
            self._snapshot.enter(unpack(state, "the state of those that train"), self._group.slot)
        except MismatchError:
            comm.revoke()
            raise
        if not self._world.comm.agree(self._is_same(comm)):
            raise CommError("this rank's state is not that of the others")

    def _connect(self, view: View) -> Comm:
        return self._group.connect_some([_root(view), *view.entered], "state")

    def _is_same(self, comm: Comm) -> bool:
        digests = comm.all_gather(np.frombuffer(self._snapshot.digest(), np.uint8).copy())
        return len({row.tobytes() for row in digests}) == 1


def _root(view: View) -> int:
    """The lowest member that has the state."""
    return next(process for process in view.processes if process not in view.entered)
