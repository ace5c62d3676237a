"""What a TorchState itself makes travel: plain values, and parameters that no optimizer trains."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from elche.errors import ConfigError


class Values:
    """Plain values by name; they travel together."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        """Keep a value; one that cannot travel is refused now, not when a rank has died."""
        if isinstance(value, Tensor):
            value = value.detach()  # a loss would drag its graph along, which cannot be copied
        elif not isinstance(value, (bool, int, float, str)):
            _require_pickles(name, value)
        self._values[name] = value

    def state_dict(self) -> dict[str, Any]:
        """Return the values."""
        return dict(self._values)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over values of the same names."""
        require_same_names("plain values", state_dict, self._values)
        self._values.update(state_dict)


class Untrained:
    """A model's parameters that its optimizer does not have, frozen ones: they must be equal, too."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = dict(parameters)

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters, not copied."""
        return {name: parameter.detach() for name, parameter in self._parameters.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Overwrite the parameters, which must have the same names and shapes."""
        require_same_names("frozen parameters", state_dict, self._parameters)
        for name, parameter in self._parameters.items():
            if state_dict[name].shape != parameter.shape:
                raise ConfigError(
                    f"frozen parameter {name} has shape {tuple(parameter.shape)}, "
                    f"the state's has {tuple(state_dict[name].shape)}"
                )
        for name, parameter in self._parameters.items():
            parameter.detach().copy_(state_dict[name])


def require_same_names(what: str, found: Iterable[str], expected: Iterable[str]) -> None:
    """Raise `ConfigError` where a state does not hold exactly what it should.

    Args:
        what: the things that have the names.
        found: names in the state.
        expected: names it should have.

    Raises:
        ConfigError: the text tells the names that are missing, and those too many.
    """
    found, expected = set(found), set(expected)
    if found != expected:
        raise ConfigError(
            f"the {what} are not the same: missing {sorted(expected - found)}, "
            f"too many {sorted(found - expected)}"
        )


def _require_pickles(name: str, value: Any) -> None:
    try:
        pickle.dumps(value, protocol=4)
    except Exception as error:  # whatever the __reduce__ of somebody's class raises
        raise ConfigError(
            f"{name} cannot travel: it has not both state_dict() and load_state_dict(), "
            f"and as a plain value it cannot be pickled: {error}"
        ) from error
