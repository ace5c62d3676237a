"""What single words mean: python before the script, variables, ssh, and what is horovodrun's alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elche.environment import Environment
from elche.errors import ConfigError
from elche.mpi_launch.foreign import WHY
from elche.mpi_launch.forwarding import forwarded
from elche.mpi_launch.hosts import Host
from elche.mpi_launch.options import Options, parse_options

SCRIPT = str(Path(__file__).with_name("run_rank.py"))
HERE = Path(sys.executable).parent
SHELL = {"SET": "1", "PATH": "/bin"}


def parsed(*words: str, shell: dict[str, str] = SHELL) -> Options:
    return parse_options(("-np", "2", *words), Environment(), shell)


def refusal(*words: str, shell: dict[str, str] = SHELL) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(*words, shell=shell)
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "script", "variables"),
    [
        (["python", SCRIPT, "-u"], (SCRIPT, "-u"), ()),
        (["python3", "-u", SCRIPT], (SCRIPT,), (("PYTHONUNBUFFERED", "1"),)),
        (["python3.11", "-m", "this"], ("-m", "this"), ()),
        ([str(HERE / "python"), SCRIPT], (SCRIPT,), ()),
        (["-x", "A=1", "python", "-u", SCRIPT], (SCRIPT,), (("PYTHONUNBUFFERED", "1"), ("A", "1"))),
    ],
)
def test_python_may_stand_before_the_script(words, script, variables) -> None:
    options = parsed(*words)
    assert (options.script, options.variables) == (script, variables)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["python"], "the script must be given after the options, got ''"),
        (["python", "-m"], "the script must be given after the options, got '-m'"),
        (["python", "-W", "error", SCRIPT], "the script must be a Python file, or -m and a module, got '-W'"),
        (["bash", SCRIPT], "the script must be a Python file, or -m and a module, got 'bash'"),
        (["/opt/other/bin/python", SCRIPT], f"python must be the one of this elche-run, {sys.executable}"),
    ],
)
def test_what_is_no_script_is_refused(words, said) -> None:
    assert refusal(*words).startswith(said)


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["-x", "A=1"], (("A", "1"),)),
        (["--env", "A=1=2", "-x", "B="], (("A", "1=2"), ("B", ""))),
        (["-x", "SET"], (("SET", "1"),)),
        (["-x", "A=1", "-x", "A=2"], (("A", "2"),)),
        (["-x=A=-1"], (("A", "-1"),)),
    ],
)
def test_variables_are_set_or_sent(words, variables) -> None:
    assert parsed(*words, SCRIPT).variables == variables


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("UNSET", "-x must be NAME=VALUE, or the NAME of a variable that is set, got 'UNSET'"),
        ("1A=2", "-x must be NAME or NAME=VALUE, got '1A=2'"),
        ("=2", "-x must be NAME or NAME=VALUE, got '=2'"),
        ("ELCHE_LOG=l", "-x must be none of elche's own: they have options, or are set before elche-run"),
    ],
)
def test_a_variable_that_is_none_is_refused(word, said) -> None:
    assert refusal("-x", word, SCRIPT).startswith(said)


def test_what_means_the_same_elsewhere_is_sent_and_what_is_asked_for() -> None:
    shell = (
        "PATH",
        "HOME",
        "SLURM_NTASKS",
        "SSH_AUTH_SOCK",
        "NCCL_DEBUG",
        "BASH_FUNC_x%%",
        "A B",
        "OMPI_MCA_x",
    )
    assert forwarded(shell) == ["NCCL_DEBUG", "PATH"]
    assert forwarded(shell, ["SLURM_NTASKS", "NEW"]) == ["NCCL_DEBUG", "NEW", "PATH", "SLURM_NTASKS"]


@pytest.mark.parametrize(
    ("words", "agent"),
    [
        ([], "ssh"),
        (["-p", "2222"], "ssh -p 2222"),
        (["--ssh-port", "22", "--ssh-identity-file", SCRIPT], f"ssh -p 22 -i {SCRIPT}"),
        (["--launch-agent", "rsh -n"], "rsh -n"),
    ],
)
def test_how_hosts_are_reached(words, agent) -> None:
    assert parsed(*words, SCRIPT).launch_agent == agent


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-p", "0"], "argument -p/--ssh-port: must be an integer of at least 1, got '0'"),
        (["-p", "65536"], "-p must be at most 65535, got 65536"),
        (["-i", "/no/key"], "-i must be a file, got '/no/key'"),
        (["--launch-agent", "rsh", "-p", "22"], "-p must be left out where --launch-agent is given, got 22"),
        (["--network-interfaces", "eth0,,"], "--network-interfaces must be NAME,NAME, got ''"),
        (["--network-interfaces", "nosuch0"], "--network-interfaces must be interfaces of this machine (lo"),
        (["--output-filename", SCRIPT], "--output-filename must be a directory, or one that can be made"),
        (["--output-filename", f"{SCRIPT}/in"], "--output-filename must be a directory, or one that can"),
        (["--output-filename="], "--output-filename must be a directory, or one that can be made, got ''"),
        (["--reset-limit", "-1"], "argument --reset-limit: must be an integer of at least 0, got '-1'"),
        (["--slots-per-host", "2"], "--slots-per-host must be left out without --host-discovery-script, got"),
        (["--elastic-timeout", "9"], "--elastic-timeout must be left out without --host-discovery"),
        (["--host-discovery-script", "/no/such"], "--host-discovery-script must be a program that can be"),
        (["--host-discovery-script", SCRIPT], "--host-discovery-script must be a program that can be run"),
        (["--host-discovery-script", "true", "-H", "a"],
         "--host-discovery-script must be left out where --hosts is given, got 'true'"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_at_once(words, said) -> None:
    assert refusal(*words, SCRIPT).startswith(said)


@pytest.mark.parametrize("name", sorted(WHY))
def test_what_is_horovodruns_alone_is_refused_with_its_reason(name: str) -> None:
    for words in ([name, SCRIPT], [name, "5", SCRIPT], [f"{name}=5", SCRIPT]):
        assert refusal(*words) == f"{name} is an option of horovodrun, not of elche-run: {WHY[name]}"


def test_the_script_may_have_such_an_option() -> None:
    assert parsed(SCRIPT, "--autotune").script == (SCRIPT, "--autotune")


def test_in_slurm_ranks_and_hosts_are_the_allocations_unless_the_command_line_names_them() -> None:
    slurm = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_NTASKS": "3",
    }
    options = parse_options((SCRIPT,), Environment(), slurm)
    assert (options.num_ranks, options.hosts) == (3, (Host("n1", 2), Host("n2", 2)))
    assert (options.hosts_from, options.restarts) == ("Slurm job 7", 3)
    assert parsed(SCRIPT, shell=slurm).num_ranks == 2
    options = parse_options(("-H", "localhost:4", SCRIPT), Environment(), slurm)
    assert (options.num_ranks, options.hosts, options.hosts_from) == (4, (Host("localhost", 4),), None)


def test_with_a_discovery_script_the_least_ranks_may_stand_for_the_first() -> None:
    words = ("--host-discovery-script", "true", "--min-np", "2", "--max-np", "4", SCRIPT)
    options = parse_options(words, Environment())
    assert (options.num_ranks, options.min_ranks, options.max_ranks, options.restarts) == (2, 2, 4, 3)
    for slots, ranks in ((3, 3), (9, 4)):
        assert options.on_found((Host("a", slots),)).num_ranks == ranks
    few = parse_options(("--host-discovery-script", "true", "-np", "4", SCRIPT), Environment())
    for slots, ranks in ((2, 2), (9, 4)):  # found anew at each start of the job
        few = few.on_found((Host("a", slots),))
        assert few.num_ranks == ranks
    with pytest.raises(ConfigError, match=r"^-np must be given"):
        parse_options(("--host-discovery-script", "true", SCRIPT), Environment())
