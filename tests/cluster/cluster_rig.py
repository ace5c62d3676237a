"""A job under elche-run: started, watched, sent signals, and judged by its log and what its ranks say."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from waiting import is_alive, until

TRAIN = Path(__file__).with_name("run_train.py")
MARK = "TEST_OF_ELCHE"  # a variable that all processes of a job inherit: so strays are found


class Job:
    """One `elche-run`, and after its end what came of it."""

    def __init__(
        self,
        folder: Path,
        options: Sequence[str],
        told: Mapping[str, Any],
        *,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        script: Sequence[str] = (str(TRAIN),),
    ) -> None:
        self.folder, self.told, self.options = folder, told, options
        self.mark = f"{os.getpid()}-{folder}"
        words = [*options, "--log", str(folder / "log.jsonl"), *script, str(folder), json.dumps(told)]
        self._out = (folder / "out.txt").open("w+")
        self._err = (folder / "err.txt").open("w+")
        self.launcher = subprocess.Popen(
            [*prefix, sys.executable, "-m", "elche.mpi_launch", *words],
            env={**os.environ, MARK: self.mark, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
        )

    # While it runs.

    def notes(self, process: int) -> list[dict[str, Any]]:
        """What a process has written so far."""
        path = self.folder / f"{process}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def noted(self, key: str, process: int) -> list[Any]:
        """The values that a process noted under a key."""
        return [note[key] for note in self.notes(process) if key in note]

    def pid(self, process: int) -> int:
        return until(lambda: self.noted("pid", process))[-1]

    def wait_for_window(self, window: int, process: int = 0) -> None:
        def reached() -> bool:
            assert self.launcher.poll() is None, self.story()
            return max(self.noted("window", process), default=-1) >= window

        until(reached)

    def order(self, process: int, kind: str) -> None:
        """Let a fault happen in a process's next batch."""
        aside = self.folder / f"aside-{process}"
        aside.write_text(kind)
        aside.replace(self.folder / f"order-{process}")

    def signal(self, number: int) -> None:
        """Send elche-run a signal."""
        os.kill(self.launcher.pid, number)

    def processes(self) -> list[int]:
        """Everything that runs for this job, whoever started it."""
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if _has_mark(path, self.mark)]

    def kill(self) -> None:
        """End whatever is left of it."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.launcher.wait()
        self._out.close()
        self._err.close()

    # Its end.

    def end(self, seconds: float = 60.0, stray_seconds: float = 5.0) -> int:
        """Wait for the end and return the exit code; soon after nothing may be left of it."""
        try:
            code = self.launcher.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end after {seconds} s\n{self.story()}") from None
        until(lambda: not self.processes(), stray_seconds)
        return code

    def story(self) -> str:
        """What a reader of a failed test wants to see."""
        return f"{self.err}\n{self.out}\n" + "\n".join(
            f"process {process}: {self.notes(process)[-3:]}" for process in range(self.num_processes)
        )

    @property
    def num_processes(self) -> int:
        return len(list(self.folder.glob("[0-9]*.jsonl")))

    @property
    def err(self) -> str:
        return (self.folder / "err.txt").read_text()

    @property
    def out(self) -> str:
        return (self.folder / "out.txt").read_text()

    @property
    def said(self) -> list[str]:
        """What elche-run itself says, without the numbers that change from run to run."""
        prefix = "elche-run: "
        lines = [line.removeprefix(prefix) for line in self.err.splitlines() if line.startswith(prefix)]
        return [re.sub(r"\d+ batch(es)? dealt again, healed in \d+ ms", "COST", line) for line in lines]

    def fired(self, process: int) -> tuple[int, int]:
        """The epoch and window in which a process's fault came to pass."""
        return next((note["epoch"], note["window"]) for note in self.notes(process) if "fired" in note)

    def lost_line(self, process: int, how: str) -> str:
        """The launcher's last line for a rank that has its first slot."""
        epoch, window = self.fired(process)
        return f"lost rank {process} (slot {process}) in epoch {epoch}, window {window}: {how}; COST"

    def log(self, event: str | None = None) -> list[dict[str, Any]]:
        """The events of the log, or those of one kind."""
        lines = (self.folder / "log.jsonl").read_text().splitlines()
        return [entry for line in lines if event in (None, (entry := json.loads(line))["event"])]

    def committed(self) -> list[dict[str, Any]]:
        """The windows that count: those after a snapshot were trained again where a job went on from it."""
        windows: dict[int, dict[str, Any]] = {}
        for entry in self.log():
            if entry["event"] == "run":
                before, windows = windows, {}
            if entry["event"] == "resume":
                windows = {n: told for n, told in {**before, **windows}.items() if n < entry["window"]}
            if entry["event"] == "window":
                assert entry["window"] not in windows
                windows[entry["window"]] = entry
        return list(windows.values())

    def ended(self) -> list[int]:
        """The processes that came to the end of their script."""
        return [process for process in range(self.num_processes) if self.noted("ended", process)]

    def assert_fired(self) -> None:
        """Each fault that was told has happened."""
        for process, _, kind in self.told["faults"]:
            assert kind in self.noted("fired", process), self.story()

    def assert_lawful(self, epochs: int | None = None, samples: int = 400) -> None:
        """Each id once in each epoch, the log complete and in order, everybody at the end equal."""
        windows = self.committed()
        assert [entry["window"] for entry in windows] == list(range(len(windows)))
        for entry in windows:  # StepLR's, whatever happened
            assert math.isclose(entry["lr"], 0.05 * 0.95 ** entry["epoch"], rel_tol=1e-9), entry
        whole = self.told["epochs"] if epochs is None else epochs
        for epoch in range(max(whole, windows[-1]["epoch"] + 1)):
            runs = [run for entry in windows if entry["epoch"] == epoch for _, *run in entry["ranges"]]
            positions = [position for start, stop in runs for position in range(start, stop)]
            assert len(set(positions)) == len(positions), f"epoch {epoch}\n{self.story()}"
            if epoch < whole:
                assert len(positions) == samples, f"epoch {epoch}\n{self.story()}"
        if epochs is None or self.members & set(self.ended()):
            self.assert_equal(
                sum(entry["updated"] for entry in windows)
            )  # a stopped job's ranks do not come to the script's end

    def assert_equal(self, updates: int) -> None:
        """All members have come to the end of the script, with the same state."""
        ended = [note for process in self.members for note in self.notes(process) if "ended" in note]
        assert len(ended) == len(self.members) > 0, self.story()
        assert {note["updates"] for note in ended} == {updates}, self.story()
        assert len({note["ended"] for note in ended}) == 1, self.story()

    @property
    def members(self) -> set[int]:
        """The processes that are ranks at the end, as the log tells."""
        members: set[int] = set()
        for entry in self.log():
            if entry["event"] == "run":
                members = set(range(entry["world"]))
            if entry["event"] == "joined":
                members.add(entry["process"])
            if entry["event"] == "lost":
                members.discard(entry["process"])
        return members


def _has_mark(path: Path, mark: str) -> bool:
    try:
        return f"{MARK}={mark}\0".encode() in (path / "environ").read_bytes() and is_alive(int(path.name))
    except OSError:
        return False
