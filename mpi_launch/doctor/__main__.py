"""`elche-doctor`: gather the facts, judge them, print one screen or one JSON document."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from elche.config import variables
from elche.errors import ConfigError
from elche.mpi_launch.arguments import Parser, seconds
from elche.mpi_launch.command import find_mpirun
from elche.mpi_launch.doctor.facts import gather
from elche.mpi_launch.doctor.findings import exit_code, findings, verdict
from elche.mpi_launch.doctor.problem import Facts, Problem
from elche.mpi_launch.doctor.screen import draw

WRONG_USAGE = os.EX_USAGE  # 2 says that this machine cannot train
DOCTOR_FAILED = os.EX_SOFTWARE
INTERRUPTED = 130
EPILOG = """\
exit codes:
  0 all well; notes are about what elche-run takes care of
  1 works, with limits, such as no ULFM
  2 cannot train
  64 wrong usage   70 the doctor itself failed, or its output   130 interrupted

The live test trains for a moment on 2 to 4 ranks of this machine, started by
elche-run, and kills one of them.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: without its first word; None: this process's.

    Returns:
        The exit code, see --help.
    """
    try:
        options = _parser().parse_args(sys.argv[1:] if argv is None else argv)
        if options.mpirun is not None:
            find_mpirun(options.mpirun)
    except ConfigError as error:
        _write(sys.stderr, f"elche-doctor: {error}; elche-doctor --help lists the options\n")
        return WRONG_USAGE
    try:
        return report(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception:  # Python's own exit code, 1, would say that it works with limits
        traceback.print_exc()
        return DOCTOR_FAILED


def report(options: argparse.Namespace) -> int:
    """Gather, judge and print.

    Args:
        options: what was asked for.

    Returns:
        The exit code.
    """
    with _progress(is_wanted=not options.json):
        facts = gather(options.mpirun, deadline_seconds=options.deadline_seconds, tries=options.live)
    problems = findings(facts)
    text = document(facts, problems) if options.json else _screen(facts, problems)
    try:
        _write(sys.stdout, f"{text}\n")
    except BrokenPipeError:  # `| head`; Python would complain of it once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_code(problems)


def document(facts: Facts, problems: list[Problem]) -> str:
    """Return the JSON document.

    Args:
        facts: see `elche.mpi_launch.doctor`.
        problems: worst first.

    Returns:
        An object with "verdict", "exit_code", "findings" and "facts".
    """
    found = [problem.plain() for problem in problems]
    whole = {
        "verdict": verdict(problems),
        "exit_code": exit_code(problems),
        "findings": found,
        "facts": facts,
    }
    return json.dumps(whole, indent=2)


def _screen(facts: Facts, problems: list[Problem]) -> str:
    shell, is_terminal = variables(), sys.stdout is not None and sys.stdout.isatty()
    coloured = is_terminal and not shell.get("NO_COLOR") and shell.get("TERM") != "dumb"
    return draw(facts, problems, width=shutil.get_terminal_size().columns, coloured=coloured)


def _parser() -> Parser:
    parser = Parser(
        prog="elche-doctor",
        description="Say whether this machine can train, and what to do about what is wrong.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print facts and findings as one JSON document")
    parser.add_argument("--no-live", dest="live", action="store_false", help="leave the live test out")
    parser.add_argument(
        "--mpirun", metavar="PATH", help="another mpirun than the one beside python, or on PATH"
    )
    parser.add_argument(
        "--deadline-seconds", type=seconds, default=60.0, metavar="S",
        help="what takes longer, a library or the live test, is taken to hang (60)",
    )  # fmt: skip
    return parser


@contextmanager
def _progress(*, is_wanted: bool) -> Iterator[None]:
    """Show a line to whoever looks on while it takes its seconds."""
    is_wanted = is_wanted and sys.stderr is not None and sys.stderr.isatty()
    if is_wanted:
        _write(sys.stderr, "asking MPI, torch and the system ...")
    try:
        yield
    finally:
        if is_wanted:
            _write(sys.stderr, "\r\033[K")


def _write(stream: TextIO | None, text: str) -> None:
    if stream is not None:  # closed, as by `>&-`
        stream.write(text)
        stream.flush()


if __name__ == "__main__":
    sys.exit(main())
