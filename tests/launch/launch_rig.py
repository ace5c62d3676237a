"""Processes that a test has started and ends, and what their ranks write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from waiting import until

RANK = Path(__file__).with_name("run_rank.py")


class Started:
    """A process under test, what its ranks write, and its end."""

    def __init__(
        self, folder: Path, module: str, options: tuple[str, ...], words: Any, env: dict[str, str]
    ) -> None:
        self.folder = folder
        script = [str(RANK), str(folder), json.dumps(words)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *options, *script],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def notes(self, process: int = 0) -> list[dict[str, Any]]:
        """What a rank has written so far."""
        path = self.folder / f"{process}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, key: str, process: int = 0) -> Any:
        """The first value that a rank notes under this key."""
        return until(lambda: [note for note in self.notes(process) if key in note])[0][key]

    def end(self, seconds: float = 60.0) -> tuple[int, str]:
        """Exit code and standard error, when it has ended by itself."""
        _, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, err


def pids(job: Started, processes: int) -> list[int]:
    """The process ids of the first ranks of a job."""
    return [job.wait_for("pid", process) for process in range(processes)]
