"""The guard: every end of a rank becomes one that MPI understands, and neither outlives the other."""

from __future__ import annotations

import os
import signal
import socket

import pytest
from waiting import is_alive, until

from elche.mpi_launch.messages import Channel, LauncherAddress

GUARD = "elche.mpi_launch.guard"


class Launcher:
    """A launcher's end of the line, by hand."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(20)
        address = LauncherAddress("token", self.listener.getsockname()[1], ("127.0.0.1",))
        self.env = {"ELCHE_GUARD": str(address)}
        self.channel, self.told = None, []

    def accept(self):
        self.channel = Channel(self.listener.accept()[0])

    def wait_for(self, event):
        def found():
            self.told += self.channel.receive()
            return [message for message in self.told if message["event"] == event]

        return until(found)[0]


@pytest.fixture
def launcher():
    made = Launcher()
    yield made
    made.listener.close()
    if made.channel is not None:
        made.channel.close()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 0),
        ([["exit", 0]], 0),
        ([["exit", 3]], -signal.SIGKILL),
        ([["raise"]], -signal.SIGKILL),
        ([["kill", signal.SIGKILL]], -signal.SIGKILL),
        ([["kill", signal.SIGTERM]], -signal.SIGKILL),
    ],
)
def test_only_zero_stays_an_exit_code(start, words, code):
    assert start(GUARD, words=words).end()[0] == code


def test_a_traceback_is_shown_once(start):
    _, err = start(GUARD, words=[["raise"]]).end()
    assert err.count("ValueError: told to") == 1


def test_a_module_runs_as_well(start):
    assert start(GUARD, "-m", "this", words=[]).end()[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_are_passed_on_once(start, number):
    guard = start(GUARD, words=[["term", 0], ["note", "ready"], ["hang"]])
    guard.wait_for("ready")
    os.killpg(guard.process.pid, number)  # mpirun signals the guard's whole group; the rank is in its own
    assert guard.wait_for("signal") == number
    if number == signal.SIGTERM:
        assert guard.end()[0] == 0
    assert [note["signal"] for note in guard.notes() if "signal" in note] == [number]


def test_a_rank_dies_with_its_guard(start):
    guard = start(GUARD, words=[["hang"]])
    rank = guard.wait_for("pid")
    guard.process.kill()
    until(lambda: not is_alive(rank))


def test_a_rank_dies_with_its_launcher(start, launcher):
    guard = start(GUARD, words=[["hang"]], env=launcher.env)
    launcher.accept()
    rank = guard.wait_for("pid")
    launcher.channel.close()
    assert guard.end()[0] == -signal.SIGKILL
    assert not is_alive(rank)


def test_what_happens_is_told_to_the_launcher(start, launcher):
    words = [
        ["tell", {"event": "joined", "process": 2}],
        ["tell", {"beat": True, "in_batch": True}],
        ["exit", 3],
    ]
    guard = start(
        GUARD, words=words, env={**launcher.env, "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
    )
    launcher.accept()
    assert launcher.wait_for("ended") == {"event": "ended", "process": 2, "code": 3}
    pid = guard.wait_for("pid", process=2)
    assert launcher.told == [
        {"event": "started", "token": "token", "process": 2, "host": socket.gethostname(), "pid": pid},
        {"event": "listening"},
        {"event": "joined", "process": 2},
        {"event": "ended", "process": 2, "code": 3},
    ]


def test_a_stopped_rank_is_reported(start, launcher):
    guard = start(GUARD, words=[["hang"]], env=launcher.env)
    launcher.accept()
    rank = guard.wait_for("pid")
    os.kill(rank, signal.SIGSTOP)
    launcher.wait_for("frozen")
    os.kill(rank, signal.SIGCONT)
    launcher.wait_for("thawed")
    os.kill(rank, signal.SIGSTOP)
    launcher.channel.send({"kill": True})
    assert launcher.wait_for("ended")["code"] == -signal.SIGKILL
    assert guard.end()[0] == -signal.SIGKILL


def test_orders_reach_the_rank(start, launcher):
    guard = start(GUARD, words=[["hear"], ["hear"], ["note", "ready"], ["hang"]], env=launcher.env)
    launcher.accept()
    launcher.wait_for("listening")
    launcher.channel.send({"stop": True})
    assert guard.wait_for("heard") == [{"stop": True}]
    launcher.channel.send({"grow": 1, "ranks": 5})
    guard.wait_for("ready")
    assert [note["heard"] for note in guard.notes() if "heard" in note][1] == [{"grow": 1, "ranks": 5}]
    launcher.channel.send({"signal": signal.SIGUSR2})
    assert guard.wait_for("signal") == signal.SIGUSR2


def test_a_rank_that_does_not_listen_is_stopped_by_a_signal(launcher, start, tmp_path):
    guard = start(GUARD, words=[["deaf"]], env=launcher.env)
    launcher.accept()
    guard.wait_for("pid")
    launcher.channel.send({"stop": True})
    assert launcher.wait_for("ended")["code"] == -signal.SIGTERM
    assert guard.end()[0] == -signal.SIGKILL


def test_a_rank_that_was_set_aside_and_hangs_is_killed(start, launcher):
    words = [["tell", {"beat": True, "in_batch": True}], ["note", "ready"], ["hang"]]
    guard = start(GUARD, "--kill-seconds", "0.5", words=words, env=launcher.env)
    launcher.accept()
    guard.wait_for("ready")
    launcher.channel.send({"set_aside": True})
    code, err = guard.end()
    assert code == -signal.SIGKILL
    assert err.count("rank 0 was set aside and has hung for 0.5 s: killed") == 1


@pytest.mark.parametrize("in_batch", [True, False])
def test_a_rank_is_let_live_outside_batches_and_when_back(start, launcher, in_batch):
    words = [["tell", {"beat": True, "in_batch": in_batch}], ["note", "ready"], ["wait_for", "go"]]
    guard = start(GUARD, "--kill-seconds", "0.2", words=words, env=launcher.env)
    launcher.accept()
    guard.wait_for("ready")
    launcher.channel.send({"set_aside": True})
    if in_batch:
        launcher.channel.send({"set_aside": False})
    with pytest.raises(AssertionError, match="waited"):
        until(lambda: not is_alive(guard.process.pid), seconds=1.5)  # several times its limit
    (guard.folder / "go").touch()
    assert guard.end()[0] == 0


def test_without_a_launcher_it_says_so_and_goes_on(start, launcher):
    launcher.listener.close()
    guard = start(GUARD, words=[["wait_for", "go"]], env=launcher.env)
    err = guard.process.stderr.readline()
    assert err == "elche-run: the guard of process 0 cannot reach elche-run, and goes on without it\n"
    (guard.folder / "go").touch()
    assert guard.end() == (0, "")


def test_a_wrong_address_is_refused(start):
    code, err = start(GUARD, words=[], env={"ELCHE_GUARD": "there"}).end()
    assert code == 2
    assert err == "elche-run: ELCHE_GUARD is set by elche-run, never by hand; got 'there'\n"


def test_copies_that_cannot_be_made_are_no_reason_to_end(start):
    code, err = start(GUARD, "--output", "/proc/none", words=[["note", "ran"]]).end()
    assert code == 0
    assert err.startswith(
        "elche-run: what process 0 prints is not copied: [Errno 2] No such file or directory"
    )


def test_what_the_rank_prints_is_copied_and_goes_on(start, tmp_path):
    code, err = start(GUARD, "--output", str(tmp_path / "out"), words=[["raise"]]).end()
    assert code == -signal.SIGKILL
    assert err.endswith("ValueError: told to\n")
    assert (tmp_path / "out" / "rank.0" / "stderr").read_text() == err
