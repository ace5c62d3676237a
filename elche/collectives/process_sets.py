"""Process sets: some of the ranks, with operations of their own, and what a world has of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from elche import world as worlds
from elche.collectives.channel import Channel
from elche.collectives.handles import Handle
from elche.collectives.negotiate import Ready
from elche.collectives.requests import ADD_SET, REMOVE_SET, Request
from elche.comm.base import Comm
from elche.comm.mpi_start import has_threads
from elche.errors import ConfigError, HorovodInternalError
from elche.world import World


class ProcessSet:
    """Some of the ranks; `add_process_set` makes it usable.

    Attributes:
        process_set_id: its number; None: it has not been added, or was removed.
        ranks: who belongs to it, ascending; None: all.
    """

    process_set_id: int | None
    ranks: list[int] | None

    def __init__(self, ranks: Sequence[int]) -> None:
        """Name the ranks; nothing is said to the others.

        Args:
            ranks: who belongs to it.
        """
        self.process_set_id, self.ranks = None, sorted(ranks)

    def members(self) -> list[int]:
        """Return the ranks that belong to it."""
        return list(range(worlds.size())) if self.ranks is None else self.ranks

    def size(self) -> int:
        """Return how many ranks belong to it."""
        return len(self.members())

    def rank(self) -> int:
        """Return this process's number among them.

        Returns:
            The number, 0..size()-1.

        Raises:
            ConfigError: it does not belong to it.
        """
        if not self.included():
            raise ConfigError(f"rank {worlds.rank()} is not in {self}")
        return self.members().index(worlds.rank())

    def included(self) -> bool:
        """Return whether this process belongs to it."""
        return worlds.rank() in self.members()

    def __repr__(self) -> str:
        """Return it as texts name it."""
        return "all ranks" if self.ranks is None else f"ProcessSet(ranks={self.ranks})"


def _everybody() -> ProcessSet:
    process_set = ProcessSet([])
    process_set.process_set_id, process_set.ranks = 0, None
    return process_set


global_process_set = _everybody()


_making = threading.Lock()  # of a world's operations, which several threads of a script may begin


class Operations:
    """The process sets of a world while its ranks stay the same, each with a channel.

    Attributes:
        everybody: the channel of all ranks.
        ranks_of: by number, the ranks of each process set that was added.
    """

    everybody: Channel
    ranks_of: dict[int, list[int]]

    def __init__(self, world: World) -> None:
        """Begin with the set of all ranks.

        Args:
            world: whose ranks they are.

        Raises:
            HorovodInternalError: its MPI takes calls of one thread only.
        """
        if world.backend == "mpi" and not has_threads():
            raise HorovodInternalError(
                "operations need an MPI with MPI_THREAD_MULTIPLE, which this one, or mpi4py.rc, does not give"
            )
        self.comm = world.comm
        self._deadline = world.environment.stall_seconds or world.comm.deadline_seconds
        self.everybody = self._channel(list(range(self.comm.size)), "all ranks")
        self.everybody.change_sets = self._change
        self.ranks_of, self._num_added = {}, 0
        self._channels: dict[int, Channel] = {0: self.everybody}

    def channel(self, process_set: ProcessSet) -> Channel:
        """Return the channel of a process set that this rank belongs to."""
        number = process_set.process_set_id
        if number != 0 and (number is None or self.ranks_of.get(number) != process_set.ranks):
            raise ConfigError(
                f"{process_set} is not known: add_process_set() comes first, on all ranks, and again after "
                "the ranks have changed"
            )
        if number not in self._channels:
            raise ConfigError(f"rank {self.comm.rank} is not in {process_set}")
        return self._channels[number]

    def number_of(self, ranks: list[int]) -> int | None:
        """Return the number of the process set of exactly these ranks."""
        if ranks == list(range(self.comm.size)):
            return 0
        return next((number for number, known in self.ranks_of.items() if known == ranks), None)

    def close(self) -> None:
        """Let what is outstanding fail, and tell the other ranks that this one leaves."""
        for channel in list(self._channels.values()):
            channel.begin_close()
        self.everybody.close()  # its thread adds and removes the others
        for channel in list(self._channels.values()):
            channel.close()

    def _channel(self, ranks: list[int], title: str) -> Channel:
        def connect() -> Comm:
            return self.comm.beside(ranks, title, deadline_seconds=self._deadline)

        return Channel(connect, ranks.index(self.comm.rank), len(ranks), self._deadline, title)

    def _change(self, ready: Ready) -> None:
        """Add or remove a set; all ranks are here, in the thread of the channel of all."""
        ranks = list(ready.one.splits)
        if ready.one.kind == REMOVE_SET:
            number = self.number_of(ranks)
            if number:
                del self.ranks_of[number]
                if number in self._channels:
                    self._channels.pop(number).close()
            return
        self._num_added += 1
        number = self._num_added
        self.ranks_of[number] = ranks
        if self.comm.rank in ranks:
            channel = self._channel(ranks, f"process set {number}")
            channel.connect()
            self._channels[number] = channel


def current() -> Operations:
    """Return the process sets of this world's ranks, new ones where ranks were lost or came.

    Returns:
        They are closed by `elche.shutdown()`.

    Raises:
        HorovodInternalError: this process is outside of the group.
    """
    world = worlds.current()
    with _making:
        known = world.operations
        if isinstance(known, Operations) and known.comm is world.comm:
            return known
        if not world.inside:
            raise HorovodInternalError("this process is not among the ranks, which go on without it")
        world.operations = made = Operations(world)
    if known is not None:
        known.close()
    return made


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Make a process set usable; all ranks call this alike, also those outside of it.

    Args:
        process_set: its ranks.

    Returns:
        The process set, with its number.

    Raises:
        ConfigError: there is one of these ranks, or they are not ranks.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    ranks, size = process_set.members(), worlds.size()
    problem = ""
    if not ranks or len({*ranks}) < len(ranks) or not {*ranks} <= {*range(size)}:
        problem = f"a process set has different ranks of 0..{size - 1}, at least one, got {ranks}"
    elif current().number_of(ranks) is not None:
        problem = f"a process set with the same ranks exists already, got {ranks}"
    _agree(ADD_SET, ranks, problem)
    process_set.process_set_id = current().number_of(ranks)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a process set; all ranks call this alike. What is outstanding in it fails.

    Args:
        process_set: the one; its number becomes None.

    Returns:
        Whether there was one to remove; the set of all ranks cannot be.
    """
    operations = current()
    if process_set.process_set_id not in operations.ranks_of:
        return False
    _agree(REMOVE_SET, process_set.members(), "")
    process_set.process_set_id = None
    return True


def _agree(kind: str, ranks: list[int], problem: str) -> None:
    channel = current().everybody
    request = Request(kind, channel.name(None), splits=tuple(ranks), refusal=problem)
    if problem:
        channel.refuse(request)
        raise ConfigError(problem)
    channel.submit(Handle(request)).wait()
