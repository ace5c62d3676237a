"""The command line: what is asked for, where it comes from, and what is refused with its bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elche.environment import Environment
from elche.errors import ConfigError
from elche.mpi_launch.hosts import Host
from elche.mpi_launch.options import Options, parse_options

SCRIPT = str(Path(__file__).with_name("run_rank.py"))
SILENT = Environment()


def parsed(*argv: str, environment: Environment = SILENT) -> Options:
    return parse_options(argv, environment)


def test_defaults_are_the_published_ones() -> None:
    assert parsed("-np", "4", SCRIPT) == Options(
        script=(SCRIPT,),
        num_ranks=4,
        spares=0,
        respawn=0,
        min_ranks=1,
        max_ranks=None,
        max_failures=None,
        strict=False,
        stall_seconds=None,
        kill_seconds=60.0,
        grace_seconds=10.0,
        restarts=0,
        log=None,
        hosts=(),
        launch_agent="ssh",
        mpirun=None,
        mpirun_args=(),
    )


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--np=3", "num_ranks", 3),
        ("--spares 1", "spares", 1),
        ("--respawn", "respawn", 4),
        ("--respawn 2", "respawn", 2),
        ("--respawn=2", "respawn", 2),
        ("--max-np 6", "max_ranks", 6),
        ("--min-np 2", "min_ranks", 2),
        ("--max-failures 3", "max_failures", "3"),
        ("--max-failures 25%", "max_failures", "25%"),
        ("--strict", "strict", True),
        ("--stall-seconds 2.5", "stall_seconds", 2.5),
        ("--kill-seconds 5", "kill_seconds", 5.0),
        ("--grace-seconds 1", "grace_seconds", 1.0),
        ("--restarts 2", "restarts", 2),
        ("--log run.jsonl", "log", "run.jsonl"),
        ("--hosts h1:2,h2", "hosts", (Host("h1", 2), Host("h2", 1))),
        ("--hosts h1:2,h2", "restarts", 3),
        ("--hosts h1:4", "restarts", 0),
        ("--launch-agent agent.sh", "launch_agent", "agent.sh"),
        ("--mpirun-args=--tag-output", "mpirun_args", ("--tag-output",)),
    ],
)
def test_an_option_is_read(words: str, name: str, value: Any) -> None:
    assert getattr(parsed("-np", "4", *words.split(), SCRIPT), name) == value


def test_a_string_of_arguments_for_mpirun_is_split_as_a_shell_would() -> None:
    assert parsed("-np", "1", "--mpirun-args", "-x 'A B' --q", SCRIPT).mpirun_args == ("-x", "A B", "--q")


@pytest.mark.parametrize(
    ("words", "script"),
    [
        ([SCRIPT, "-np", "7", "--strict", "-m"], (SCRIPT, "-np", "7", "--strict", "-m")),
        (["--respawn", SCRIPT, "9"], (SCRIPT, "9")),
        (["-m", "package.module", "--strict"], ("-m", "package.module", "--strict")),
        (["--", SCRIPT, "--"], (SCRIPT, "--")),
    ],
)
def test_the_script_keeps_its_own_arguments(words: list[str], script: tuple[str, ...]) -> None:
    options = parsed("-np", "2", *words)
    assert (options.script, options.num_ranks, options.strict) == (script, 2, False)


def test_with_hosts_their_slots_are_the_ranks(tmp_path: Path) -> None:
    assert parsed("--hosts", "h1:2,h2:3", SCRIPT).num_ranks == 5
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# two hosts\nh1 slots=2 max_slots=4\n\nh2\n")
    options = parsed("--hostfile", str(hostfile), SCRIPT)
    assert (options.num_ranks, options.hosts) == (3, (Host("h1", 2), Host("h2", 1)))


def test_the_environment_speaks_where_the_command_line_is_silent() -> None:
    shell = Environment(
        spares=1, seats=2, min_ranks=3, max_ranks=5, max_failures="50%", stall_seconds=3.0, log="l"
    )
    options = parsed("-np", "4", SCRIPT, environment=shell)
    assert (options.spares, options.respawn, options.min_ranks, options.max_ranks) == (1, 2, 3, 5)
    assert (options.max_failures, options.stall_seconds, options.log) == ("50%", 3.0, "l")
    options = parsed("-np", "4", "--spares", "0", "--min-np", "1", SCRIPT, environment=shell)
    assert (options.spares, options.min_ranks) == (0, 1)


def test_processes_are_ranks_then_spares_then_seats() -> None:
    options = parsed("-np", "4", "--spares", "1", "--respawn", "2", "--max-np", "7", SCRIPT)
    assert (options.num_seats, options.num_processes) == (5, 10)  # 2 replacements and 3 places to grow into


@pytest.mark.parametrize(
    ("text", "most"), [(None, None), ("0", 0), ("3", 3), ("25%", 2), ("24%", 1), ("0%", 0), ("100%", 8)]
)
def test_a_percentage_of_failures_is_of_the_first_ranks(text: str | None, most: int | None) -> None:
    given = () if text is None else ("--max-failures", text)
    assert parsed("-np", "8", *given, SCRIPT).most_losses == most


def test_on_fewer_hosts_ranks_go_before_spares() -> None:
    options = parsed("-np", "4", "--spares", "2", "--hosts", "h1:3,h2:3", SCRIPT)
    for hosts, ranks, spares in (((Host("h2", 3),), 3, 0), ((Host("h1", 5),), 4, 1), ((), 0, 0)):
        left = options.on(hosts)
        assert (left.hosts, left.num_ranks, left.spares) == (hosts, ranks, spares)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "-np must be given: how many ranks to start, got ''"),
        ("-np 0", "argument -np/-n/--np/--num-proc: must be an integer of at least 1, got '0'"),
        ("-np four", "argument -np/-n/--np/--num-proc: must be an integer of at least 1, got 'four'"),
        ("-np 2 --spares -1", "argument --spares: must be an integer of at least 0, got '-1'"),
        ("-np 2 --respawn -1", "argument --respawn: must be an integer of at least 0, got '-1'"),
        ("-np 2 --min-np 0", "argument --min-np/--min-num-proc: must be an integer of at least 1, got '0'"),
        ("-np 2 --min-np 3", "--min-np must be at most -np (2), got 3"),
        ("-np 2 --max-np 1", "--max-np must be at least -np (2), got 1"),
        (
            "-np 2 --max-failures 101%",
            "--max-failures must be an integer of at least 0, or a percentage from 0% to 100%, got '101%'",
        ),
        ("-np 2 --stall-seconds 0", "argument --stall-seconds: must be a number of seconds above 0, got '0'"),
        (
            "-np 2 --kill-seconds inf",
            "argument --kill-seconds: must be a number of seconds above 0, got 'inf'",
        ),
        ("-np 2 --restarts x", "argument --restarts: must be an integer of at least 0, got 'x'"),
        ("-np 2 --hosts h1:0", "--hosts: the slots of h1 must be an integer of at least 1, got '0'"),
        ("-np 2 --hosts h1,h1", "--hosts must be named once, got 'h1'"),
        ("-np 2 --hosts ,h1", "--hosts must be the name of a host, NAME or NAME:SLOTS, got ''"),
        ("-np 2 --hostfile /no/such", "--hostfile must be a file that can be read, got '/no/such': "),
        ("-np 2 --hosts h1 --hostfile h", "--hostfile must be left out where --hosts is given, got 'h'"),
        ('-np 2 --mpirun-args="', "--mpirun-args must be words as a shell takes them, got '\"'"),
        ("-np 2 --launch-agent=", "--launch-agent must be a command, got ''"),
        ("-np 2 --spare 1", "unrecognized arguments: --spare"),
        ("-np", "argument -np/-n/--np/--num-proc: expected one argument"),
    ],
)
def test_a_wrong_value_is_refused_with_its_bound(words: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(*words.split(), SCRIPT) if words != "-np" else parsed("-np")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ((), "the script must be given after the options, got ''"),
        (("-m",), "the script must be given after the options, got '-m'"),
        (("no.py",), "the script must be a Python file, or -m and a module, got 'no.py'"),
    ],
)
def test_a_missing_script_is_refused(script: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed("-np", "2", *script)
    assert str(caught.value) == said
