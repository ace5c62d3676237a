"""argparse for a command that starts another: errors are raised, and the script keeps its own arguments."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import NoReturn

from elche.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises instead of leaving."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print.

        Args:
            message: argparse's words.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(message)


def split(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the parser's own arguments, each value tied to its option by "=", and the script with its own.

    argparse alone would take some of the script's options for its own, and values such as "-x A" for options.

    Args:
        parser: knows which options take a value.
        argv: the command line.

    Returns:
        The two parts.
    """
    own: list[str] = []
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        action = parser._option_string_actions.get(option)
        if option == "--":
            break
        if action is not None and action.nargs == "?":
            option += f"={rest.pop(0)}" if rest and rest[0].lstrip("-").isdigit() else f"={action.const}"
        elif action is not None and action.nargs is None and rest:
            option += f"={rest.pop(0)}"
        own.append(option)
        if option == "-m":
            break
    return own, rest


def number(text: str) -> int:
    """Return the text as an integer of at least 0, for argparse."""
    return _at_least(0, text)


def positive(text: str) -> int:
    """Return the text as an integer of at least 1, for argparse."""
    return _at_least(1, text)


def _at_least(bound: int, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= bound):
        raise argparse.ArgumentTypeError(f"must be an integer of at least {bound}, got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """Return the text as a finite time above 0, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text!r}")
    return value
