"""The examples do what their first lines say, with and without mpirun."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

EXAMPLES = Path(__file__).parents[2] / "examples"
NUM_TRAINING = 1437  # of scikit-learn's 1,797 digits 360 are for testing
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(params=[0, 1, 2], ids=["plain", "np1", "np2"])
def run(request: pytest.FixtureRequest, mpirun: Run) -> Run:
    """Run an example without mpirun (0) or on so many ranks; it must succeed."""

    def start(script: str, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        if request.param:
            done = mpirun(request.param, EXAMPLES / script, *args, timeout=120, env=env)
        else:
            command = [sys.executable, str(EXAMPLES / script), *args]
            environment = {**os.environ, **(env or {})}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return start


def test_digits_are_trained_twice_and_summed_up(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    shown = run("train_elche.py", "--epochs", "2", env={"ELCHE_LOG": str(log)}).stdout
    assert len(re.findall(r"^cadence +epoch", shown, re.MULTILINE)) >= 1
    for row in ("test accuracy", "updates", "samples/s", "bound, samples/s", "reached"):
        assert re.search(rf"^{row} +\S+ +\S+$", shown, re.MULTILINE), shown
    accuracies = [float(text) for text in re.findall(r"([\d.]+)%", re.search("test accuracy.*", shown)[0])]
    assert min(accuracies) > 80, "ten digits: guessing is right one time in ten"
    assert str(log) in shown
    windows = [e for e in map(json.loads, log.read_text().splitlines()) if e["event"] == "window"]
    assert sum(sum(window["samples"]) for window in windows) == 2 * 2 * NUM_TRAINING


def test_emulated_speeds_shape_the_shares(mpirun: Run) -> None:
    settings = ("--epochs", "1", "--speeds", "1,4", "--batch-seconds", "0.02")
    done = mpirun(2, EXAMPLES / "train_elche.py", *settings, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "emulated speeds 1:4" in done.stdout
    shares = re.findall(r"^ +[01] +[\d.]+ +([\d.]+)% +([\d.]+)%$", done.stdout, re.MULTILINE)
    cadence, sync = ([float(share[i]) for share in shares] for i in (0, 1))
    assert cadence[1] > 1.5 * cadence[0], "a device four times as fast does most of the work"
    assert sync == pytest.approx([50, 50], abs=1)


def test_a_speed_for_each_rank_is_asked_for(mpirun: Run) -> None:
    done = mpirun(2, EXAMPLES / "train_elche.py", "--speeds", "1,2,4", timeout=120)
    assert done.returncode != 0
    assert "--speeds must name 2 speeds, one for each rank; '1,2,4' names 3" in done.stdout + done.stderr


def test_plain_torch_learns_the_same_digits() -> None:
    command = [sys.executable, str(EXAMPLES / "train_torch.py"), "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert float(re.findall(r"test accuracy ([\d.]+)%", done.stdout)[-1]) > 80


def test_the_language_model_learns_and_writes(mpirun: Run) -> None:
    done = mpirun(2, EXAMPLES / "char_lm.py", "--chars", "50000", "--context", "32", timeout=120)
    assert done.returncode == 0, done.stderr
    shown = done.stdout
    bits = [float(text) for text in re.findall(r"([\d.]+) bits per character", shown)]
    assert bits[-1] < 5, "128 equally likely characters take 7 bits"
    assert "\ndef " in shown
