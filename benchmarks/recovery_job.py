"""A job under test: started, watched by its event log, its processes signalled, ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

FOLDER = "BENCHMARK_FOLDER"
ENOUGH = "enough"  # the file that lets a job stop
PATIENCE_SECONDS = 60.0
LOOK_SECONDS = 0.05  # nothing is timed by looking, and looking takes the ranks' cores

Found = TypeVar("Found")
Record = dict[str, Any]


def note(**facts: Any) -> None:
    """Let this worker tell the benchmark something."""
    number = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["RANK"]
    with (Path(os.environ[FOLDER]) / f"{number}.notes").open("a") as file:
        file.write(json.dumps({"process": int(number), **facts}) + "\n")


class Job:
    """A launcher and its workers, from their start to their end."""

    def __init__(self, folder: Path, launcher: Sequence[str], script: str, **variables: str) -> None:
        """Start it.

        Args:
            folder: where log, notes and output go; empty.
            launcher: the words after python.
            script: the workers', beside this file.
            **variables: of its environment.
        """
        self.folder, self.log = folder, folder / "log.jsonl"
        environment = {**os.environ, **variables, FOLDER: str(folder), "OMP_NUM_THREADS": "1"}
        self._output = (folder / "output").open("w")
        self._process = subprocess.Popen(
            [sys.executable, *launcher, str(Path(__file__).with_name(script))],
            env={**environment, "ELCHE_LOG": str(self.log)},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(PATIENCE_SECONDS)
        self._output.close()

    def events(self, kind: str) -> list[Record]:
        """Return the events of a kind so far, in the log's order."""
        return [event for event in records(self.log) if event["event"] == kind]

    def notes(self, key: str) -> list[Record]:
        """Return what workers have noted under a key."""
        files = sorted(self.folder.glob("*.notes"))
        return [record for file in files for record in records(file) if key in record]

    def wait(self, for_what: str, find: Callable[[], Found], seconds: float = PATIENCE_SECONDS) -> Found:
        """Wait until `find` returns something true, and return that.

        Args:
            for_what: named where it does not come.
            find: looks for it.
            seconds: how long it may take.

        Returns:
            What was found.

        Raises:
            RuntimeError: the job ended before, or it took longer.
        """
        end = time.monotonic() + seconds
        while not (found := find()):
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"waited in vain for {for_what}; the job said:\n{self.output()[-3000:]}")
            time.sleep(LOOK_SECONDS)
        return found

    def window(self, number: int) -> Record:
        """Wait until the log tells of a window, and return it."""
        return self.wait(f"window {number}", lambda: self.events("window")[number : number + 1])[0]

    def signal(self, process: int, number: signal.Signals) -> float:
        """Send a signal to a worker, not to its guard; return when, by `time.perf_counter()`."""
        pid = [note for note in self.notes("pid") if note["process"] == process][-1]["pid"]
        sent = time.perf_counter()
        os.kill(pid, number)
        return sent

    def finish(self) -> int:
        """Let the job stop; return its exit code."""
        (self.folder / ENOUGH).touch()
        return self._process.wait(PATIENCE_SECONDS)

    def output(self) -> str:
        """Return what the launcher and its workers have printed."""
        return (self.folder / "output").read_text()


def records(path: Path) -> list[Record]:
    """Return the whole lines of a file that may still be written to; none where it is not there yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
