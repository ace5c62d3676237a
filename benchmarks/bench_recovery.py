"""A rank is killed, or stopped for ten seconds: how long the others wait, and until all train again.

python benchmarks/bench_recovery.py            # about 4 minutes
python benchmarks/bench_recovery.py --quick    # each fault once, without torchrun
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
from harness import Spread, goal, markdown_table, paragraph
from recovery_ddp import SNAPSHOT_EVERY
from recovery_elche import NUM_SAMPLES
from recovery_job import Job, Record
from recovery_log import COMPARED_WINDOWS, History, loss, silence
from rig import BATCH_SECONDS, BATCH_SIZE

NUM_RANKS, WINDOW_SECONDS = 4, 2 * BATCH_SECONDS
STEADY_WINDOWS = 7  # before each fault; a job's first ones hold first-time costs
STALL_SECONDS, STOPPED_SECONDS = 1.0, 10.0
GOAL_UPDATE, GOAL_SPARE, GOAL_GAP = 0.3, 1.0, 0.2  # seconds beside a window, and the deadline
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "--max-restarts", "3"]
# Without the first, torchrun never gets over the loss: the new workers wait for a store that is gone.
TORCHRUN_VARIABLES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"}

DRAW = random.Random(0)

Fault = Callable[[Job, int], tuple[float, ...]]
Figures = Callable[..., Record]


def train(options: Sequence[str], victims: Sequence[int], fault: Fault, figures: Figures) -> dict[str, Any]:
    """Train with elche on four ranks and some spare processes; let one after the other have a fault.

    Args:
        options: of elche-run, beside the number of ranks.
        victims: process numbers.
        fault: does it to one of them, and waits until all are back; returns its moments.
        figures: makes of the log, the victim and these moments what it cost.

    Returns:
        The figures of each fault, and whether the job went on as one.
    """
    launcher = ["-m", "elche.mpi_launch", "-np", str(NUM_RANKS), *options]
    num_warm = NUM_RANKS + ("--spares" in options) * len(victims)
    with tempfile.TemporaryDirectory() as folder, Job(Path(folder), launcher, "recovery_elche.py") as job:
        job.wait("all processes to be ready", lambda: len(job.notes("built")) >= num_warm)
        moments = []
        for victim in victims:
            job.window(len(job.events("window")) + STEADY_WINDOWS)
            time.sleep(DRAW.random() * WINDOW_SECONDS)  # at any point of a window
            moments.append((victim, *fault(job, victim)))
        job.window(len(job.events("window")) + STEADY_WINDOWS)
        num_epochs = len(job.events("epoch"))
        job.wait("the end of an epoch", lambda: len(job.events("epoch")) > num_epochs)
        exit_code = job.finish()
        history, ends, pids = History(job), job.notes("parameters"), job.notes("pid")
    return {
        "faults": [figures(history, *moment) for moment in moments],
        "window": history.window_seconds,
        **history.samples(NUM_SAMPLES),
        "restarted": len(pids) - len({note["process"] for note in pids}),
        "equal": len(ends) == NUM_RANKS and len({note["parameters"] for note in ends}) == 1,
        "exit_code": exit_code,
    }


def kill(job: Job, victim: int) -> tuple[float, ...]:
    """Kill a rank and wait until another process is there in its stead."""
    num_joined = len(job.events("joined"))
    killed = job.signal(victim, signal.SIGKILL)
    job.wait("a replacement", lambda: len(job.events("joined")) > num_joined)
    return (killed,)


def stop(job: Job, victim: int) -> tuple[float, ...]:
    """Stop a rank for ten seconds, and wait until it is back."""
    num_joined = len(job.events("joined"))
    stopped = job.signal(victim, signal.SIGSTOP)
    time.sleep(STOPPED_SECONDS)
    continued = job.signal(victim, signal.SIGCONT)
    job.wait("its return", lambda: len(job.events("joined")) > num_joined)
    return stopped, continued


def torchrun(num_losses: int) -> list[Record]:
    """Train with DDP under torchrun; kill a rank ten steps after a snapshot, several times."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Job(Path(folder), TORCHRUN, "recovery_ddp.py", **TORCHRUN_VARIABLES) as job,
    ):
        return [torchrun_loss(job) for _ in range(num_losses)]


def torchrun_loss(job: Job) -> Record:
    """Kill rank 2; return what it cost."""

    def steps() -> list[Record]:
        return [note for note in job.notes("step") if note["process"] == 0]

    def pids() -> set[int]:
        return {note["pid"] for note in job.notes("pid")}

    num_steps = len(steps())
    job.wait("ten steps", lambda: len(steps()) > num_steps + 5 and steps()[-1]["step"] % SNAPSHOT_EVERY >= 10)
    before, killed = pids(), job.signal(2, signal.SIGKILL)
    last = max(note["step"] for note in steps() if note["seconds"] < killed)
    job.wait("more steps", lambda: steps()[-1]["seconds"] > killed and steps()[-1]["step"] > last)
    after = [note for note in steps() if note["seconds"] > killed]
    return {
        "update": after[0]["seconds"] - killed,
        "regained": next(note["seconds"] for note in after if note["step"] > last) - killed,
        "steps_again": last - after[0]["step"] + 1,
        "restarted": len(pids() - before) - 1,
    }


def killed_rows(cases: dict[str, list[Record]], window: float) -> list[list[str]]:
    """Return the first table: from the kill to the survivors' next update."""
    return [
        [
            case,
            str(len(faults)),
            Spread.of([fault["update"] for fault in faults]).format(),
            f"{max(fault['update'] for fault in faults):.3f}",
            Spread.of([fault["due"] for fault in faults]).format(),
            Spread.of([fault["update"] - fault["due"] for fault in faults]).format(".0f", 1e3),
            Spread.of([fault["gap"] for fault in faults]).format(),
            goal(statistics.median(fault["update"] for fault in faults) <= GOAL_UPDATE + window),
        ]
        for case, faults in cases.items()
    ]


def whole_rows(cases: dict[str, list[Record]], window: float) -> list[list[str]]:
    """Return the second table: from the kill to full strength."""
    return [
        [
            case,
            *(Spread.of([fault[name] for fault in faults]).format() for name in ("entered", "whole")),
            Spread.of([fault["transfer"] for fault in faults]).format(".0f", 1e3),
            *(f"{max(fault[name] for fault in faults):.3f}" for name in ("gap_after", "gap_before")),
            goal(statistics.median(fault["entered"] for fault in faults) <= GOAL_SPARE + window)
            if "spare" in case
            else "",
        ]
        for case, faults in cases.items()
    ]


def silent_rows(faults: list[Record], window: float) -> list[list[str]]:
    """Return the third table: a rank that is stopped for a while."""
    gap, entered = (Spread.of([fault[name] for fault in faults]) for name in ("gap", "entered"))
    transfer = Spread.of([fault["transfer"] for fault in faults])
    return [
        [
            str(len(faults)),
            gap.format(),
            goal(gap.median <= STALL_SECONDS + GOAL_GAP + window),
            entered.format(),
            Spread.of([fault["due"] for fault in faults]).format(),
            transfer.format(".0f", 1e3),
            Spread.of([fault["whole"] for fault in faults]).format(),
            goal(entered.median <= window + transfer.median),
        ]
    ]


def beside_rows(cases: dict[str, list[Record]], rival: list[Record]) -> list[list[str]]:
    """Return the table that sets elche beside what others offer."""
    rows = [
        [
            f"elche, {case}",
            *(
                Spread.of([fault[name] for fault in faults]).format(".2f")
                for name in ("update", "update", "entered")  # nothing is rolled back
            ),
            f"{statistics.median(fault['samples_again'] for fault in faults):g}",
            "0",
        ]
        for case, faults in cases.items()
    ]
    if rival:
        update, regained = (
            Spread.of([fault[name] for fault in rival]).format(".2f") for name in ("update", "regained")
        )
        again = statistics.median(fault["steps_again"] for fault in rival) * NUM_RANKS * BATCH_SIZE
        restarted = f"{statistics.median(fault['restarted'] for fault in rival):g}"
        rows.append(["torchrun --max-restarts 3, DDP", update, regained, update, f"{again:g}", restarted])
    installed = importlib.util.find_spec("torchft") is not None
    rows.append(
        ["torchft", "installed, no run is written yet" if installed else "not installed", "", "", "", ""]
    )
    return rows


def render(result: dict[str, Any]) -> str:
    """Return the report's text."""
    jobs = [*result["spare"], result["respawn"], result["stop"]]
    window = statistics.median(job["window"] for job in jobs)
    spare = [fault for job in result["spare"] for fault in job["faults"]]
    cases = {
        "rank 0, a spare waits": [fault for fault in spare if fault["process"] == 0],
        "another rank, a spare waits": [fault for fault in spare if fault["process"] != 0],
        "a rank, a seat sleeps": result["respawn"]["faults"],
    }
    setting = paragraph(f"""
        {NUM_RANKS} ranks under elche-run, emulated devices: a batch of {BATCH_SIZE} takes
        {BATCH_SECONDS * 1e3:g} ms, by sleeping; two batches are a window, {window:.3f} s with its closing
        step (median). Seconds unless said otherwise; medians (20 % to 80 %). Times are the event log's: an
        update counts when it is committed. Faults come at any point of a window, one after the other in a
        job, each when all ranks are back. Ranks, spares and newcomers share the cores.""")
    killed = paragraph(f"""
        **SIGKILL.** "next update": from the signal to the survivors' next committed update; "due": when the
        window under way would have ended had nobody died, the bound; "gap": the longest time between two
        updates. Goal: the next update within {GOAL_UPDATE:g} s plus a window.""")
    head = ["killed", "times", "next update", "worst", "due", "later than due, ms", "gap", "goal"]
    first = markdown_table(head, killed_rows(cases, window))
    back = paragraph(f"""
        **Full strength.** From the signal until a newcomer has entered, its state equal by hash, and until
        the first update that it took part in. A seat is woken by the loss: it imports and builds before it
        knocks. "gap after": the survivors' longest time between updates until then, the worst of all;
        "before": the same in the {COMPARED_WINDOWS} windows before the loss. Goal: a spare has entered
        within {GOAL_SPARE:g} s plus a window.""")
    head = ["killed", "entered", "first update", "transfer, ms", "gap after", "before", "goal"]
    second = markdown_table(head, whole_rows(cases, window))
    silent = paragraph(f"""
        **SIGSTOP** of a rank for {STOPPED_SECONDS:g} s, ELCHE_STALL_SECONDS={STALL_SECONDS:g}. "others' gap":
        their longest time between updates meanwhile; goal: the deadline plus {GOAL_GAP:g} s plus a window.
        After SIGCONT: until it has entered; "due": until the others' window under way ended, the bound; until
        the first update that it took part in. Goal: entered within a window plus the transfer.""")
    head = ["times", "others' gap", "goal", "entered", "due", "transfer, ms", "first update", "goal"]
    third = markdown_table(head, silent_rows(result["stop"]["faults"], window))
    return "\n\n".join([setting, killed, first, back, second, silent, third, *rest(jobs, cases, result)])


def rest(jobs: list[dict[str, Any]], cases: dict[str, list[Record]], result: dict[str, Any]) -> list[str]:
    """Return what holds for all jobs together, and the others' figures."""
    lost, repeated, restarted = (sum(job[name] for job in jobs) for name in ("lost", "repeated", "restarted"))
    equal = all(job["equal"] for job in jobs)
    clean = all(job["exit_code"] == 0 for job in jobs)
    num_faults = sum(len(job["faults"]) for job in jobs)
    whole = paragraph(f"""
        **Whole.** In {len(jobs)} jobs with {num_faults} faults: samples lost {lost}, repeated {repeated};
        processes restarted {restarted}; parameters at the end equal by hash on all ranks: {equal}; exit code
        0: {clean}. Goal: none lost, repeated or restarted, all equal:
        {goal(not (lost or repeated or restarted) and equal and clean)}.""")
    beside = paragraph(f"""
        **Beside others**, in the same run: a rank is killed; torchrun's DDP script writes a snapshot every
        {SNAPSHOT_EVERY} steps and loses the rank ten steps after one, {len(result["torchrun"])} times.
        "past the loss": the first update beyond those made before it. "samples again": dealt before the loss,
        and once more after it. "restarted": of the survivors.""")
    head = ["", "next update", "past the loss", "full strength", "samples again", "restarted"]
    return [whole, beside, markdown_table(head, beside_rows(cases, result["torchrun"]))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="each fault once, without torchrun")
    parser.add_argument("--repeats", type=int, default=5, help="jobs in which two ranks are killed")
    args = parser.parse_args()
    repeats, others = (1, [2]) if args.quick else (args.repeats, [2, 1, 3])
    header = harness.conditions()
    result: dict[str, Any] = {}
    result["spare"] = [train(["--spares", "2"], [0, 2], kill, loss) for _ in range(repeats)]
    result["respawn"] = train(["--respawn", str(len(others))], others, kill, loss)
    result["stop"] = train(["--stall-seconds", f"{STALL_SECONDS:g}"], others, stop, silence)
    result["torchrun"] = [] if args.quick else torchrun(len(others))
    harness.report("recovery_quick" if args.quick else "recovery", header, render(result), result)


if __name__ == "__main__":
    main()
