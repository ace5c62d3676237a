"""What follows from the facts: problems, worst first, the verdict and the exit code. Plain values only."""

from __future__ import annotations

from elche.mpi_launch.doctor.libraries import library_problems
from elche.mpi_launch.doctor.problem import Facts, Level, Problem
from elche.mpi_launch.doctor.surroundings import surrounding_problems

VERDICTS = {Level.NOTE: "all well", Level.LIMIT: "works, with limits", Level.FATAL: "cannot train"}


def findings(facts: Facts) -> list[Problem]:
    """Judge a machine.

    Args:
        facts: see `elche.mpi_launch.doctor`.

    Returns:
        What is wrong, worst first; nothing where all is well.
    """
    found = [*library_problems(facts), *surrounding_problems(facts)]
    return sorted(found, key=lambda problem: -problem.level)


def exit_code(problems: list[Problem]) -> int:
    """Return 0 where all is well, 1 where it works with limits, 2 where it cannot train."""
    return max((int(problem.level) for problem in problems), default=0)


def verdict(problems: list[Problem]) -> str:
    """Return the exit code in words, and which problems it is for.

    Args:
        problems: what is wrong.

    Returns:
        Such as "works, with limits: no ULFM, CPU quota".
    """
    worst = Level(exit_code(problems))
    named = [problem.about for problem in problems if problem.level == worst > Level.NOTE]
    return f"{VERDICTS[worst]}{': ' * bool(named)}{', '.join(dict.fromkeys(named))}"
