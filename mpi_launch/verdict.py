"""What guards and ranks have told, and what follows from it: orders, the exit code, the last lines.

No clock, no sockets: `Record.note` takes one message after the other.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass

from elche.mpi_launch.messages import Message

FINISHED, FAILED, LOSSES, STALLED, HUNG_UP, INTERRUPTED, TERMINATED = 0, 1, 3, 5, 129, 130, 143
COUNTED = ("died", "silent")  # who leaves is no failure
PARTINGS = (FINISHED, INTERRUPTED, TERMINATED)  # codes of one that leaves as it was asked to
OWN_ENDS = ("error", "stalled", "left")  # reasons of one rank; with any other the whole job stops
# A rank ended by one of these has itself to blame, and would be again.
OWN_FAULTS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS}


class End(enum.Enum):
    """Why the launcher ended the job; the value is the exit code."""

    TOO_MANY_FAILURES = FAILED
    STALLED = STALLED
    SIGHUP = HUNG_UP
    SIGINT = INTERRUPTED
    SIGTERM = TERMINATED


@dataclass
class Loss:
    """A rank that was lost, or left, as the survivors tell it."""

    process: int
    slot: int | None = None
    cause: str = "died"
    epoch: int | None = None
    window: int | None = None
    heal_ms: float | None = None
    batches: int | None = None
    back: bool = False
    evicted: bool = False

    def line(self, code: int | None) -> str:
        """Return who, when, why and what it cost.

        Args:
            code: how its process ended, if it has.

        Returns:
            One sentence.
        """
        why = self.cause
        if code is not None and (self.cause == "died" or (self.cause == "left" and code not in PARTINGS)):
            why += f" ({describe(code)})"
        where = "" if self.slot is None else f" (slot {self.slot})"
        when = "" if self.epoch is None else f" in epoch {self.epoch}, window {self.window}"
        costs = []
        if self.batches is not None:
            costs.append(f"{self.batches} batch{'' if self.batches == 1 else 'es'} dealt again")
        if self.heal_ms is not None:
            costs.append(f"healed in {self.heal_ms:.0f} ms")
        after = "; came back" if self.back else "; killed when its slot was filled" if self.evicted else ""
        return f"lost rank {self.process}{where}{when}: {why}{'; ' * bool(costs)}{', '.join(costs)}{after}"


class Record:
    """What is known of a job."""

    def __init__(self, num_ranks: int, num_processes: int, *, outlives_losses: bool = True) -> None:
        """Begin with all ranks alive.

        Args:
            num_ranks: the first processes, which are members from the start.
            num_processes: spares and seats included.
            outlives_losses: whether one process's failure leaves the others alive.
        """
        self._outlives_losses = outlives_losses
        self._processes = set(range(num_processes))
        self.started: set[int] = set()  # processes whose guard has called
        self._members = set(range(num_ranks))  # processes that are ranks, or were
        self._codes: dict[
            int, int | None
        ] = {}  # how processes ended: minus the signal; None: the guard vanished
        self._losses: list[Loss] = []  # as survivors told them
        self._inside = set(range(num_ranks))  # members that have not been lost since they came
        self._num_entries = 0
        self._ending: set[int] = set()  # those that told that they end
        self._stop_codes: dict[int, int] = {}  # the exit codes of members that told that the job stops
        self._listening: set[int] = set()  # processes that have come through elche.init()
        self._has_stalled = False
        self._aside: set[int] = set()
        self._frozen: set[int] = set()  # stopped by a signal
        self._excused: set[int] = set()

    def note(self, sender: int, message: Message) -> list[tuple[int, Message]]:
        """Take one message in.

        Args:
            sender: the process that told it, or whose guard did.
            message: see `elche.mpi_launch.messages`.

        Returns:
            Orders that follow from it: to the guard of which process, and what.
        """
        about = message.get("process", sender)
        match message.get("event"):
            case "started":
                self.started.add(sender)
            case "listening":
                self._listening.add(sender)
            case "ended":
                self._codes.setdefault(sender, message["code"])
                if message["code"] != 0 and not self._outlives_losses:
                    self.excuse()
            case "vanished":
                self._codes.setdefault(sender, None)
            case "frozen":
                self._frozen.add(sender)
            case "thawed":
                self._frozen.discard(sender)
            case "stop":
                self._ending.add(sender)
                self._has_stalled = self._has_stalled or message.get("reason") == "stalled"
                if sender in self._members and message.get("reason") not in OWN_ENDS:
                    self._stop_codes[sender] = int(message.get("exit_code", 0))
            case "lost":
                return self._note_lost(about, message)
            case "joined":
                return self._note_joined(about)
            case "evict":
                for loss in self._losses:
                    loss.evicted = loss.evicted or loss.process == about
                return [(about, {"kill": True})]
        return []

    @property
    def num_failures(self) -> int:
        """Losses so far, and members whose end nobody has told yet."""
        return sum(loss.cause in COUNTED for loss in self._losses) + len(self._untold())

    @property
    def num_changes(self) -> int:
        """Losses and entries so far, as the ranks told them."""
        return len(self._losses) + self._num_entries

    @property
    def is_over(self) -> bool:
        """Whether nobody is left to wait for.

        Every member has ended; or one has told that it stops, and so has every other that lives and can. One
        that has not told and is neither set aside nor frozen may be busy after its training, so it has time.
        """
        awaited = (self._members & self.living) - self._ending
        return not (awaited - self._aside - self._frozen if self._stop_codes else awaited)

    @property
    def is_stuck(self) -> bool:
        """Whether some member has ended, and all those left are stopped or set aside: nobody goes on."""
        left = self._members & self.living
        return not self.is_over and left < self._members and left <= self._aside | self._frozen

    @property
    def is_stillborn(self) -> bool:
        """Whether a process has failed before any came through elche.init(): MPI lets none through now."""
        return not self._listening and any(code != 0 for code in self._codes.values())

    @property
    def has_stopped(self) -> bool:
        """Whether some rank has told that the job stops."""
        return bool(self._stop_codes)

    def excuse(self) -> None:
        """Count the ends to come as somebody else's doing, not as losses."""
        self._excused |= self.living

    @property
    def living(self) -> set[int]:
        """Processes that have not ended, as far as is known."""
        return self._processes - self._codes.keys()

    @property
    def is_finished(self) -> bool:
        """Whether a rank came to the end of its script, or told so; one that left the others did not."""
        left = {loss.process for loss in self._losses if loss.cause == "left"}
        ended = {process for process, code in self._codes.items() if code == 0}
        return (0 in self._stop_codes.values()) if self._stop_codes else bool((self._members & ended) - left)

    def exit_code(self, end: End | None, strict: bool) -> int:
        """Return the launcher's exit code.

        Args:
            end: why the launcher ended the job; None: it ended by itself.
            strict: whether losses count.

        Returns:
            The code, see FAULTS and --help.
        """
        if end is not None:
            return end.value
        if self.is_finished:
            return LOSSES if strict and self.num_failures else FINISHED
        return min(self._stop_codes.values(), default=STALLED if self._has_stalled else FAILED)

    @property
    def died_whole(self) -> bool:
        """Whether the job ended although some rank could have gone on, so that starting again may help."""
        at_fault = {p for p in self._members if is_own_fault(self._codes.get(p))}
        if self._stop_codes or self.is_finished or (at_fault and not self._outlives_losses):
            return False
        return bool((self._members & self._codes.keys()) - at_fault)

    def lines(self) -> list[str]:
        """Return one line for each loss: those that survivors told, then those that nobody did."""
        told = [loss.line(self._codes.get(loss.process)) for loss in self._losses]
        untold = [Loss(process).line(self._codes[process]) for process in sorted(self._untold())]
        return [*told, *untold]

    def _note_lost(self, process: int, message: Message) -> list[tuple[int, Message]]:
        keys = ("slot", "cause", "epoch", "window", "heal_ms", "batches")
        loss = Loss(process, **{key: message[key] for key in keys if message.get(key) is not None})
        if any(
            (old.process, old.epoch, old.window) == (process, loss.epoch, loss.window) for old in self._losses
        ):
            return []  # another survivor has told it
        self._losses.append(loss)
        self._inside.discard(process)
        if loss.cause != "silent":
            return []
        self._aside.add(process)
        return [(process, {"set_aside": True})]

    def _note_joined(self, process: int) -> list[tuple[int, Message]]:
        if process not in self._inside:  # every member tells of it
            self._inside.add(process)
            self._num_entries += 1
        self._members.add(process)
        self._aside.discard(process)
        for loss in self._losses:
            loss.back = loss.back or loss.process == process
        return [(process, {"set_aside": False})]

    def _untold(self) -> set[int]:
        """Members that failed, neither stopping nor lost by the survivors' word."""
        told = {loss.process for loss in self._losses if not loss.back} | self._stop_codes.keys()
        return {p for p in self._members - told - self._excused if self._codes.get(p, 0) != 0}


def is_own_fault(code: int | None) -> bool:
    """Return whether a process that ended so would end so again: by an error of its own, not from outside."""
    return code is not None and (code > 0 or -code in OWN_FAULTS)


def describe(code: int) -> str:
    """Return how a process ended, in words."""
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
