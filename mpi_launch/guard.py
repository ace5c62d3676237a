"""A tiny process between mpirun and a rank: it turns every unfinished end into one that MPI understands.

    mpirun --with-ft ulfm -np 4 python -m elche.mpi_launch.guard train.py

ULFM takes a process for lost when a signal ended it; one that raises or exits with another code than 0 hangs
the others. So the guard starts the script as its child, which is the MPI process, and when that ends with
anything but 0, the guard ends itself by SIGKILL. It passes signals on, carries messages between its rank and
the launcher, and kills the rank when told, or when it was set aside and hangs for `--kill-seconds`.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from elche.config import read_environment, variables
from elche.errors import ConfigError
from elche.mpi_launch.arguments import Parser, split
from elche.mpi_launch.messages import Channel, LauncherAddress, Message, inheritable_text, parse_launcher, say
from elche.mpi_launch.signals import SignalPipe, ends_with_parent
from elche.mpi_launch.switchboard import keep_alive
from elche.mpi_launch.tee import Tee, rank_folder

SEAT = "elche.elastic.seat"
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
CALL_SECONDS = 5.0  # the launcher listens before it starts mpirun
LOOK_SECONDS = 0.5


class Guard:
    """One rank, its line to here, and the line to the launcher."""

    def __init__(
        self,
        process: int,
        command: Sequence[str],
        launcher: LauncherAddress | None,
        kill_seconds: float,
        tee: Tee | None = None,
    ) -> None:
        """Start the rank.

        Args:
            process: its lasting number.
            command: the words after python.
            launcher: where the launcher listens; None: nowhere.
            kill_seconds: how long a rank that was set aside may hang.
            tee: copies what it prints; None: nobody does.
        """
        self._process = process
        self._kill_seconds = kill_seconds
        self._signals = SignalPipe((*PASSED_ON, signal.SIGCHLD))
        self._started = time.monotonic()
        self._line, self._child = _start(command, tee)
        self._tee = tee
        self._launcher_at = launcher
        self._launcher: Channel | None = None
        self._selector = selectors.DefaultSelector()
        for source in (self._signals, self._line):
            self._selector.register(source, selectors.EVENT_READ)
        self._listens = self._in_batch = self._set_aside = False
        self._last_word = self._started

    def watch(self) -> int:
        """Return the rank's exit code, or minus the signal that ended it, once it has ended."""
        while True:
            if self._launcher_at is not None:
                self._call(self._launcher_at)
            for number in self._wait():
                if number == signal.SIGCHLD:
                    code = self._look_at_child()
                    if code is not None:
                        return self._say_goodbye(code)
                else:
                    self._signal(number)
            self._kill_if_hung()

    def _wait(self) -> list[int]:
        """Carry messages until a signal comes or it is time to look around; return the signals."""
        waits_for_launcher = self._launcher_at is not None
        for key, _ in self._selector.select(0.05 if waits_for_launcher else LOOK_SECONDS):
            if key.fileobj is self._line:
                self._carry_up()
            elif isinstance(key.fileobj, Channel):
                self._take_orders(key.fileobj)
        return self._signals.read()

    def _call(self, launcher: LauncherAddress) -> None:
        """Try to reach the launcher; give up, once and aloud, after a while."""
        for address in launcher.addresses:
            with suppress(OSError):
                connection = socket.create_connection((address, launcher.port), timeout=1.0)
                keep_alive(connection)
                self._launcher, self._launcher_at = Channel(connection), None
                self._selector.register(self._launcher, selectors.EVENT_READ)
                hello = {"token": launcher.token, "process": self._process, "event": "started"}
                self._launcher.send({**hello, "host": socket.gethostname(), "pid": self._child.pid})
                return
        if time.monotonic() - self._started > CALL_SECONDS:
            self._launcher_at = None
            say(f"the guard of process {self._process} cannot reach elche-run, and goes on without it")

    def _carry_up(self) -> None:
        was_open = self._line.is_open
        for message in self._line.receive():
            self._last_word, self._listens = time.monotonic(), True
            if "beat" in message:
                self._in_batch = bool(message.get("in_batch"))
            else:
                self._tell(message)
        if was_open and not self._line.is_open:
            self._selector.unregister(self._line)

    def _take_orders(self, launcher: Channel) -> None:
        for order in launcher.receive():
            if "kill" in order:
                self._kill()
            if "signal" in order:
                self._signal(order["signal"])
            if "set_aside" in order:
                self._set_aside, self._last_word = bool(order["set_aside"]), time.monotonic()
            if "stop" in order and not self._listens:
                self._signal(signal.SIGTERM)
            elif "stop" in order or "grow" in order:
                self._line.send(order)
        if not launcher.is_open:  # it is gone, and nobody else would end this job
            self._selector.unregister(launcher)
            self._kill()

    def _tell(self, message: Message) -> None:
        if self._launcher is not None:
            self._launcher.send(message)

    def _look_at_child(self) -> int | None:
        """Return how the child ended; None: it has not."""
        done, status = os.waitpid(self._child.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        if done == 0:
            return None
        if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
            self._tell({"event": "frozen" if os.WIFSTOPPED(status) else "thawed"})
            return self._look_at_child()
        self._child.returncode = os.waitstatus_to_exitcode(status)  # so that Popen waits for it no more
        return self._child.returncode

    def _say_goodbye(self, code: int) -> int:
        if code != 0:
            self._kill()  # workers that it has left behind
        if self._tee is not None:
            self._tee.finish()
        self._carry_up()
        if self._launcher_at is not None:
            self._call(self._launcher_at)
        self._tell({"event": "ended", "process": self._process, "code": code})
        if self._launcher is not None:
            self._launcher.finish()
        return code

    def _kill_if_hung(self) -> None:
        hangs = time.monotonic() - self._last_word > self._kill_seconds
        if self._set_aside and self._in_batch and hangs:
            say(f"rank {self._process} was set aside and has hung for {self._kill_seconds:g} s: killed")
            self._kill()
            self._set_aside = False  # a dead process may take a while to be reaped

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._child.pid, number)  # Popen's send_signal would reap the child, and lose its end

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)


def main(argv: Sequence[str]) -> int:
    """Run a rank under guard; return 0 if it ended so, and else do not return.

    Args:
        argv: options, then the script and its arguments.

    Returns:
        The exit code.
    """
    parser = Parser(prog="python -m elche.mpi_launch.guard", description=__doc__, allow_abbrev=False)
    parser.add_argument("-m", dest="module", action="store_true")
    parser.add_argument("--seats", type=int, default=0, help="so many of the last processes sleep")
    parser.add_argument("--kill-seconds", type=float, default=60.0)
    parser.add_argument("--output", help="directory of copies of what ranks print")
    try:
        own, script = split(parser, argv)
        options = parser.parse_args(own)
        environment = read_environment()
        launcher = None if environment.guard is None else parse_launcher(environment.guard)
    except ConfigError as error:
        say(str(error))
        return 2
    shell = variables()
    process, size = (
        int(shell.get(f"OMPI_COMM_WORLD_{name}", default)) for name, default in (("RANK", 0), ("SIZE", 1))
    )
    command = ["-m", *script] if options.module else script
    if process >= size - options.seats:
        command = ["-m", SEAT, *command]
    tee = None
    if options.output is not None:
        try:
            tee = Tee(rank_folder(options.output, process, size), append=environment.resume)
        except OSError as error:
            say(f"what process {process} prints is not copied: {error}")
    code = Guard(process, command, launcher, options.kill_seconds, tee).watch()
    if code != 0:
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


def _start(command: Sequence[str], tee: Tee | None) -> tuple[Channel, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    env = {**variables(), "ELCHE_GUARD": inheritable_text(theirs)}
    if tee is not None:
        env.setdefault("PYTHONUNBUFFERED", "1")  # into a pipe Python would print when it ends, or never
    with theirs:
        child = subprocess.Popen(
            [sys.executable, *command],
            env=env,
            pass_fds=[theirs.fileno()],
            stdout=None if tee is None else tee.end_for_child(1),
            stderr=None if tee is None else tee.end_for_child(2),
            preexec_fn=ends_with_parent(os.getpid()),  # noqa: PLW1509 - there are no threads here
        )
    if tee is not None:
        tee.start()
    return Channel(ours), child


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
