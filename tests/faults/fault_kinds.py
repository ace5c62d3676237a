"""What can befall a process: it ends, hangs, or hangs until the others have lost it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

COMES_BACK = {"stop", "loop", "block"}
HANGS = COMES_BACK | {f"{kind}_for_ever" for kind in COMES_BACK}
LEAVES = {"term", "leave_loop"}
STAYS = {"slow"}  # and does what it does in Faults


class Victim:
    """This process, and what the event log says of it."""

    def __init__(self, process: int, log: Path) -> None:
        self.process, self.log = process, log
        self._sign = f'"process": {process}, "cause"'

    def num_lost(self) -> int:
        """How many times the others have written that they have lost this process."""
        return self.log.read_text().count(self._sign) if self.log.exists() else 0

    def fail(self) -> None:
        raise ValueError(f"process {self.process} was told to raise")

    def fail_in_thread(self) -> None:
        thread = threading.Thread(target=self.fail)
        thread.start()
        thread.join()
        time.sleep(60)  # it ends the process

    def stop(self) -> None:
        """Be stopped, until a shell has seen that this process is lost."""
        pid = os.getpid()
        is_lost = f"[ $(grep -c '{self._sign}' {self.log}) -gt {self.num_lost()} ]"
        script = f"until {is_lost} || ! kill -0 {pid}; do sleep 0.02; done; kill -CONT {pid}"
        quiet = subprocess.DEVNULL
        subprocess.Popen(["sh", "-c", script], stdin=quiet, stdout=quiet, stderr=quiet)
        os.kill(pid, signal.SIGSTOP)

    def loop(self) -> None:
        """Compute, and hardly let go of Python's lock."""
        before, looked = self.num_lost(), time.monotonic()
        while True:
            if time.monotonic() - looked > 0.05:
                if self.num_lost() > before:
                    return
                looked = time.monotonic()

    def loop_for_ever(self) -> None:
        while True:
            pass

    def block(self) -> None:
        """Wait, as for a file system."""
        before = self.num_lost()
        while self.num_lost() == before:
            time.sleep(0.02)

    def block_for_ever(self) -> None:
        while True:
            time.sleep(1000)


def _signal(number: int) -> Callable[[Victim], None]:
    return lambda victim: os.kill(os.getpid(), number)


KINDS: dict[str, Callable[[Victim], object]] = {
    "kill": _signal(signal.SIGKILL),
    "segv": _signal(signal.SIGSEGV),
    "term": _signal(signal.SIGTERM),
    "exit_0": lambda victim: os._exit(0),
    "exit_3": lambda victim: os._exit(3),
    "sys_exit_5": lambda victim: sys.exit(5),
    "raise": Victim.fail,
    "raise_in_thread": Victim.fail_in_thread,
    "stop": Victim.stop,
    "stop_for_ever": _signal(signal.SIGSTOP),
    "loop": Victim.loop,
    "loop_for_ever": Victim.loop_for_ever,
    "block": Victim.block,
    "block_for_ever": Victim.block_for_ever,
    "slow": lambda victim: None,
    "leave_loop": lambda victim: None,  # the script does it
}
