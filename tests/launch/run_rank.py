"""A rank that does what it is told, in words; started by the tests under a guard, or under mpirun and guards.

    run_rank.py FOLDER '[["tell", {"event": "joined"}], ["exit", 3]]'    every process does the same
    run_rank.py FOLDER '{"1": [["raise"]], "*": [["hang"]]}'             process 1, and the others

It writes FOLDER/PROCESS.jsonl: one line for each thing that came to pass.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from elche.config import read_environment
from elche.mpi_launch.messages import GuardLine

folder, words = Path(sys.argv[1]), json.loads(sys.argv[2])
process = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
line = GuardLine(None if words == [["deaf"]] else read_environment().guard)


def note(**what):
    with (folder / f"{process}.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\n")


def until(holds):
    end = time.monotonic() + 30
    while not (value := holds()):
        assert time.monotonic() < end, "waited 30 s in vain"
        time.sleep(0.01)
    return value


for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
    signal.signal(number, lambda n, _: note(signal=n))
note(pid=os.getpid(), parent=os.getppid(), resume=read_environment().resume, is_open=line.is_open)
for word, *value in words if isinstance(words, list) else words.get(process, words.get("*")):
    if word == "tell":
        line.tell(value[0])
    elif word == "hear":
        note(heard=until(line.hear))
    elif word == "note":
        note(**{value[0]: True})
    elif word == "wait_for":
        until((folder / value[0]).exists)
    elif word == "term":
        signal.signal(signal.SIGTERM, lambda n, _, code=value[0]: (note(signal=n), os._exit(code)))
    elif word == "kill":
        os.kill(os.getpid(), value[0])
    elif word in ("hang", "deaf"):
        while True:
            time.sleep(1000)
    elif word == "raise":
        raise ValueError("told to")
    elif word == "exit":
        sys.exit(value[0])
    elif word == "hang_at_first" and not read_environment().resume:
        time.sleep(1000)
