"""Every exception of elche, grouped by what the reader should do about it."""

from __future__ import annotations


class ElcheError(Exception):
    """Base of all errors raised by elche on purpose."""


# Mend the call: the value and the bound it broke are in the text.


class ConfigError(ElcheError, ValueError):
    """A setting, argument or environment variable has a value elche refuses."""


def require(holds: bool, name: str, value: object, bound: str) -> None:
    """Raise `ConfigError` with the name, the bound and the value unless the bound holds."""
    if not holds:
        raise ConfigError(f"{name} must be {bound}, got {value!r}")


class NotInitializedError(ElcheError, RuntimeError):
    """Something that needs a world was used before `elche.init()` or after `elche.shutdown()`."""


class UsageError(ElcheError, RuntimeError):
    """The training loop did something that would make the result wrong, such as skipping `step()`."""


# Mend the script: the ranks disagree. Raised with the same text on all ranks.


class RankError(ElcheError, RuntimeError):
    """At least one rank cannot go on; every rank raises this with every such rank's reason."""


class MismatchError(RankError):
    """The ranks were given different models, data or settings; the text names what differs and where."""


class NonFiniteError(RankError):
    """A batch had inf or nan gradients and `Cadence(nonfinite="raise")` was asked for."""


# Mend the machine: the ranks cannot talk.


class CommError(ElcheError, RuntimeError):
    """A collective operation failed; the backend's own error is the cause."""


class DeadlineError(CommError, TimeoutError):
    """A collective operation did not end within its deadline; the text says which and who waited."""


class SilenceError(CommError):
    """Another rank has made no progress for longer than it may; it is set aside, the others go on."""


class HorovodInternalError(CommError):
    """An operation of `elche.collectives` cannot end: a rank was lost, has shut down, or did not come."""


# Mend the script, where an operation of `elche.collectives` was called unlike on the ranks.


class OperationMismatchError(MismatchError, HorovodInternalError):
    """The ranks called one operation with different arguments; all raise this, and the job goes on."""


class DuplicateNameError(ConfigError):
    """An operation was given the name of another one that has not ended."""
