"""Lets these tests import their rigs, and ends what they have started."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import hosts_rig
import pytest
from cluster_rig import Job
from hosts_rig import Hosts


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


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[[int], Hosts]]:
    """`hosts(n)`: n hosts on this machine."""
    if reason := hosts_rig.why_not():
        pytest.skip(reason)
    made: list[Hosts] = []

    def make(num_hosts: int) -> Hosts:
        made.append(Hosts(tmp_path, num_hosts))
        return made[-1]

    yield make
    for one in made:
        one.close()
