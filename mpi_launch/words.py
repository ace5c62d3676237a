"""What single words of the command line mean: the script, variables, the launch agent, interfaces."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from elche.errors import ConfigError, require
from elche.mpi_launch.allocation import kubernetes_agent

Variables = tuple[tuple[str, str], ...]


def read_script(words: tuple[str, ...]) -> tuple[tuple[str, ...], Variables]:
    """Return what is to be run; "python" and its -u may stand before it, as horovodrun wants it.

    Args:
        words: what follows the options.

    Returns:
        The script, or -m and the module, with its arguments; and the variables that follow from -u.

    Raises:
        ConfigError: it is missing, is no Python, or another Python than this shall run it.
    """
    variables: Variables = ()
    if words and re.fullmatch(r"python[\d.]*", Path(words[0]).name):
        _require_this_python(words[0])
        words = words[1:]
        if words[:1] == ("-u",):
            words, variables = words[1:], (("PYTHONUNBUFFERED", "1"),)
    require(words not in ((), ("-m",)), "the script", " ".join(words), "given after the options")
    first = words[0]
    require(first == "-m" or Path(first).is_file(), "the script", first, "a Python file, or -m and a module")
    return words, variables


def read_variables(words: Sequence[str], shell: Mapping[str, str]) -> Variables:
    """Return the variables of "-x NAME=VALUE" and "-x NAME"; of one that is given twice, the last.

    Args:
        words: what -x was given.
        shell: where the value of a bare NAME is.

    Returns:
        Names and values.

    Raises:
        ConfigError: a name is none, is not set, or is one of elche's own.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        require(name.isidentifier() and name.isascii(), "-x", word, "NAME or NAME=VALUE")
        bound = "none of elche's own: they have options, or are set before elche-run"
        require(not name.startswith("ELCHE_"), "-x", word, bound)
        require(
            bool(equals) or name in shell, "-x", word, "NAME=VALUE, or the NAME of a variable that is set"
        )
        found[name] = value if equals else shell[name]
    return tuple(found.items())


def read_launch_agent(agent: str | None, port: int | None, key: str | None, shell: Mapping[str, str]) -> str:
    """Return what runs a command on a host: the agent as given, else ssh with its port and key.

    Args:
        agent: --launch-agent; None: not given.
        port: of ssh; None: its own default.
        key: file of ssh's key; None: its own default.
        shell: where the MPI operator says how ssh is called.

    Returns:
        The command.

    Raises:
        ConfigError: a value is refused, or two contradict each other.
    """
    for option, value in (("-p", port), ("-i", key)):
        require(value is None or agent is None, option, value, "left out where --launch-agent is given")
    require(port is None or port < 65536, "-p", port, "at most 65535")
    require(key is None or Path(key).is_file(), "-i", key, "a file")
    if agent is not None:
        require(bool(read_words("--launch-agent", agent)), "--launch-agent", agent, "a command")
        return agent
    words = [*(["-p", str(port)] if port else []), *(["-i", str(key)] if key else [])]
    return f"{kubernetes_agent(shell)} {shlex.join(words)}".strip()


def read_interfaces(text: str | None) -> tuple[str, ...]:
    """Return the names of "eth0,eth1"; none where nothing was given."""
    names = () if text is None else tuple(dict.fromkeys(text.split(",")))
    for name in names:
        require(re.fullmatch(r"[^\s/,]{1,15}", name) is not None, "--network-interfaces", name, "NAME,NAME")
    return names


def read_words(option: str, text: str) -> tuple[str, ...]:
    """Return the words of a text as a shell takes them apart.

    Args:
        option: who gives it.
        text: the text.

    Returns:
        The words.

    Raises:
        ConfigError: a quote is left open.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"{option} must be words as a shell takes them, got {text!r}: {error}") from error


def _require_this_python(word: str) -> None:
    """Ranks run under the Python of `elche-run`: a bare name means that one, a path must be its path."""
    same = "/" not in word or Path(word).parent.absolute() == Path(sys.executable).parent
    require(
        same, "python", word, f"the one of this elche-run, {sys.executable}, or start that one's elche-run"
    )
