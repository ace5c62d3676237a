"""CuPy's NCCL as CuPy 14.2 has it, between threads and on the CPU: records each call, fails where it is told.

Signatures and errors are those of the real one, see `test_the_fake_is_like_the_real_one`. A `FakeCupy` is one
process's package; those of one `Fabric` reach each other. What is in a group is done on the memory that the
pointers name, when all ranks have ended theirs: sums in rank order, sends to the recvs they match.
"""

from __future__ import annotations

import operator
import threading
from types import SimpleNamespace

import numpy as np
from fake_transfers import add_up, gather, pass_on

NAMES = (
    "SUCCESS",
    "UNHANDLED_CUDA_ERROR",
    "SYSTEM_ERROR",
    "INTERNAL_ERROR",
    "INVALID_ARGUMENT",
    "INVALID_USAGE",
    "REMOTE_ERROR",
)
ERRORS = {status: f"NCCL_ERROR_{name}" for status, name in enumerate(NAMES)}
HANG, FOREVER = "hang", "forever"  # until it is aborted; not even then
WAIT_SECONDS = 20.0


class NcclError(RuntimeError):
    def __init__(self, status):
        self.status = status
        super().__init__(f"{ERRORS[status]}: as told")


class CUDARuntimeError(RuntimeError):
    def __init__(self, status):
        self.status = status
        super().__init__("cudaErrorInsufficientDriver: CUDA driver version is insufficient")


class Fabric:
    """What connects the processes."""

    def __init__(self):
        self.changed = threading.Condition()
        self.num_ids = 0
        self.rooms = {}  # by unique id, by rank, the communicator

    def unique_id(self):
        with self.changed:
            self.num_ids += 1
            return bytes((self.num_ids + 37 * place) % 256 for place in range(128))


class FakeCupy:
    """One process's CuPy.

    Attributes:
        calls: each call's name and arguments; a communicator's with its number in this process.
        faults: by a call's name and how many there were before it, what it does: raise this result of NCCL's,
            raise this error, HANG until it is aborted, or hang FOREVER.
    """

    def __init__(self, fabric=None, faults=None, *, chars=None, built=12090, available=True, driver=True):
        self.fabric, self.faults, self.chars = fabric or Fabric(), dict(faults or {}), chars
        self.calls, self.communicators = [], []
        self.released = threading.Event()  # lets what hangs FOREVER go, after the test
        self._counts, self._group = {}, threading.local()
        nccl = SimpleNamespace(
            NcclCommunicator=communicator_class(self), NcclError=NcclError, available=available,
            get_unique_id=self.get_unique_id, groupStart=self.group_start, groupEnd=self.group_end,
            NCCL_SUM=0, NCCL_UINT8=1, NCCL_FLOAT32=7, NCCL_FLOAT64=8,
        )  # fmt: skip
        runtime = SimpleNamespace(
            setDevice=lambda device: self.call("setDevice", device),
            runtimeGetVersion=lambda: built,
            getDeviceCount=lambda: 1 if driver else self.no_driver(),
        )
        self.cuda = SimpleNamespace(nccl=nccl, runtime=runtime)

    def names(self):
        """What was called, in order."""
        return [name for name, *_ in self.calls]

    def call(self, name, *args, raw=None):
        with self.fabric.changed:
            self.calls.append((name, *args))
            count = self._counts[name] = self._counts.get(name, -1) + 1
            fault = self.faults.get((name, count))
        if isinstance(fault, int):
            raise NcclError(fault)
        if isinstance(fault, BaseException):
            raise fault
        if fault == HANG:
            raws = [raw] if raw is not None else self._group.raws
            with self.fabric.changed:
                free = self.fabric.changed.wait_for(lambda: any(one.aborted for one in raws), WAIT_SECONDS)
            assert free, f"{name} was never aborted"
            raise NcclError(3)
        if fault == FOREVER:
            self.released.wait(WAIT_SECONDS)

    def no_driver(self):
        raise CUDARuntimeError(35)

    def get_unique_id(self):
        self.call("get_unique_id")
        unique = self.fabric.unique_id()
        return unique if self.chars is None else tuple(np.frombuffer(unique, self.chars).tolist())

    def from_form(self, commId):
        if not isinstance(commId, bytes if self.chars is None else tuple):
            raise TypeError(f"Argument 'commId' has incorrect type ({type(commId)})")
        assert len(commId) == 128
        if self.chars is None:
            return commId
        low = np.iinfo(self.chars).min
        if any(not low <= char < low + 256 for char in commId):
            raise OverflowError("value too large to convert to char")
        return np.array(commId, self.chars).tobytes()

    def connect(self, raw, ndev, unique, rank):
        """Wait for all ranks."""
        with self.fabric.changed:
            room = self.fabric.rooms.setdefault(unique, {})
            assert rank not in room, "an id is used once"
            room[rank] = raw
            raw.room, raw.ndev = room, ndev
            self.fabric.changed.notify_all()
            here = self.fabric.changed.wait_for(lambda: raw.aborted or len(room) == ndev, WAIT_SECONDS)
            assert here, "the other ranks never came"
            if not raw.aborted:
                raw.comm = 1
                return
        if threading.current_thread() is not raw.connecting:
            raise NcclError(3)

    def group_start(self):
        assert not getattr(self._group, "open", False)
        self._group.open, self._group.failed, self._group.ops, self._group.raws = True, False, [], []
        self.call("groupStart")

    def is_in_group(self):
        return getattr(self._group, "open", False)

    def launch(self, raw, args):
        self._group.ops.append(args)
        self._group.raws.append(raw)

    def in_group(self, *args, raw):
        try:
            self.call(*args, raw=raw)
        except Exception as error:
            self._group.failed = not (isinstance(error, KeyError) and error.args == (7,))
            raise

    def group_end(self):
        self._group.open = False
        try:
            self.call("groupEnd")
        except KeyError:  # in progress
            self._start()
            raise
        if self._group.failed:
            raise NcclError(5)  # it launches nothing, and says so again
        self._start()

    def _start(self):
        """Put the group in the stream. What PyTorch does behind bytes that move would not wait on a CPU."""
        with self.fabric.changed:
            if self._group.raws:
                raw, ops = self._group.raws[0], self._group.ops
                raw.launched.append(ops)
                self._conclude(raw)
                num, moves = len(raw.launched), any(name != "allReduce" for name, *_ in ops)
                done = lambda: raw.aborted or raw.done >= num  # noqa: E731
                assert not moves or self.fabric.changed.wait_for(done, WAIT_SECONDS), "others never came"

    def _conclude(self, raw):
        """Do the oldest group, where every rank has launched it."""
        ranks = [raw.room[rank] for rank in range(raw.ndev)]
        if any(len(one.launched) <= raw.done or one.aborted for one in ranks):
            return
        groups = [one.launched[raw.done] for one in ranks]
        for name, do in (("allReduce", add_up), ("allGather", gather)):
            mine = [[args for kind, *args in ops if kind == name] for ops in groups]
            for calls in zip(*mine, strict=True):
                do(calls)
        pass_on(groups)
        for one in ranks:
            one.done += 1
        self.fabric.changed.notify_all()

    def mark(self):
        """Return what asks whether all that was launched is done, or given up."""
        newest = self.communicators[-1]
        num = len(newest.launched)
        return lambda: newest.aborted or newest.done >= num


def communicator_class(fake):
    """The class of a package."""

    class NcclCommunicator:
        def __new__(cls, *args, **kwargs):
            self = super().__new__(cls)
            self.number, self.comm, self.aborted, self.launched, self.done = -1, 0, False, [], 0
            self.async_error, self.connecting = 0, None
            return self

        def __init__(self, ndev, commId, rank, config=None):
            ndev, rank, unique = operator.index(ndev), operator.index(rank), fake.from_form(commId)
            if self.number < 0:
                self.number = len(fake.communicators)
                fake.communicators.append(self)
            try:
                fake.call("init", self.number, ndev, rank, raw=self)
            except KeyError:  # in progress, or a time-out that comes before the others do
                args = self, ndev, unique, rank
                self.connecting = threading.Thread(target=fake.connect, args=args, daemon=True)
                self.connecting.start()
                raise
            fake.connect(self, ndev, unique, rank)

        def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream, /):
            self._put("allReduce", sendbuf, recvbuf, count, datatype, op, stream)

        def allGather(self, sendbuf, recvbuf, count, datatype, stream, /):
            self._put("allGather", sendbuf, recvbuf, count, datatype, stream)

        def send(self, sendbuf, count, datatype, peer, stream, /):
            self._put("send", sendbuf, count, datatype, peer, stream)

        def recv(self, recvbuf, count, datatype, peer, stream, /):
            self._put("recv", recvbuf, count, datatype, peer, stream)

        def _put(self, name, *args):
            args = [operator.index(value) for value in args]
            assert self.comm, "of no communicator"
            assert fake.is_in_group(), "elche launches in groups"
            fake.launch(self, (name, *args))
            fake.in_group(name, self.number, *args, raw=self)

        def check_async_error(self):
            fake.call("check_async_error", self.number, raw=self)
            if self.async_error or not self.comm:
                raise NcclError(self.async_error or (4 if self.aborted else 7))

        def abort(self):
            fake.call("abort", self.number, raw=self)
            with fake.fabric.changed:
                self.comm, self.aborted = 0, True
                fake.fabric.changed.notify_all()

        def destroy(self):
            fake.call("destroy", self.number, raw=self)
            self.comm = 0

    return NcclCommunicator
