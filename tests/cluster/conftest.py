"""Lets these tests `import cluster_rig`, and ends what they have started."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from cluster_rig import Job


@pytest.fixture
def launch(tmp_path: Path, ulfm: None) -> Iterator[Callable[..., Job]]:
    """`launch(*options, env=..., **told)`: a job of run_train.py; what is left of it at the end is killed."""
    jobs: list[Job] = []

    def begin(
        *options: str,
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        script: tuple[str, ...] | None = None,
        **told: Any,
    ) -> Job:
        folder = tmp_path / f"job{len(jobs)}"
        folder.mkdir()
        more = {} if script is None else {"script": script}
        jobs.append(Job(folder, options, {"epochs": 3, **told}, env=env, prefix=prefix, **more))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()
