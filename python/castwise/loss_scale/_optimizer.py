"""The state and the steps of an optimizer with a loss scale, around another optimizer.

A step checks the gradients, lets the inner optimizer apply them or skips that, and updates the loss
scale. If anything raises, loss scale and variables are what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from castwise._core import DynamicLossScale
from castwise.dtype_policies._keras_objects import to_dictionary
from castwise.text.wording import rename_arguments

Variable = TypeVar("Variable")
Contents = TypeVar("Contents")


class ScaledOptimizer:
    """What holds a loss scale, by the class of its dialect: in Python, or in variables."""

    # The loss scale; a subclass may compute it from variables, and assign to these.
    _machine: DynamicLossScale

    _is_dynamic: bool = True

    # Makes the arguments of the class of a config, the inner optimizer among them.
    _read_config: ClassVar[
        staticmethod[[Mapping[str, Any], Mapping[str, Any] | None], dict[str, Any]]
    ]

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> Self:
        """Make the optimizer of a config, which is not changed.

        Parameters
        ----------
        config : mapping
            "inner_optimizer" is an optimizer, or a dict with "class_name" and "config": of the
            framework, in `custom_objects`, or in a module that is imported. A config of TF 2.3 has
            "optimizer" and "loss_scale".
        custom_objects : mapping of str to class
            Further classes that the config may name, which are searched first.

        Raises
        ------
        KeyError
            There is no inner optimizer.
        TypeError, ValueError
            Its class is not found, or does not take its config; a DynamicLossScale of TF 2.3 has
            another multiplier than 2.
        ImportError
            The class is one of a framework that is not installed.

        """
        return cls(**cls._read_config(config, custom_objects))

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and the counter, by the names of the original's checkpoints.

        Empty if the scale is fixed, because the config has it. The inner optimizer's state is not
        included.
        """
        return self._machine.state_dict() if self._is_dynamic else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved scale and counter, also before the first step.

        Raises
        ------
        ValueError, TypeError
            Keys are missing or unknown; a number is invalid. Nothing has changed.

        """
        if self._is_dynamic:
            with rename_arguments(owner="LossScaleOptimizer"):
                contents_of_state = dict(state) if isinstance(state, Mapping) else state
                self._machine = self._machine.with_state(contents_of_state)
        elif state:
            raise ValueError(
                f"state has the unknown key {next(iter(state))!r}; a fixed loss scale has none. "
                "Load it into a LossScaleOptimizer with dynamic=True."
            )


class ArrayOptimizer(ScaledOptimizer):
    """A `ScaledOptimizer` around an optimizer of arrays."""

    inner_optimizer: Any

    def _inner_config(self) -> dict[str, Any]:
        return to_dictionary(self.inner_optimizer, None, lambda value: value)

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's learning rate, which can be set here."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: object) -> None:
        self.inner_optimizer.learning_rate = value

    def _take_step(
        self, finite: bool, apply: Callable[[], object], variables: Iterable[object]
    ) -> bool:
        """Apply gradients if they are finite; update the scale; tell whether they were applied."""
        # If `apply` raises, the values of those variables that are arrays are restored.
        machine, applies = self._machine.next(finite) if self._is_dynamic else (self._machine, True)
        if applies:
            with arrays_unchanged_on_failure(variables):
                apply()
        self._machine = machine
        return applies


@contextmanager
def unchanged_on_failure(
    variables: Iterable[Variable],
    read: Callable[[Variable], Contents],
    write: Callable[[Variable, Contents], object],
) -> Iterator[None]:
    """Restore what variables contained if the block raises."""
    contents = [(variable, read(variable)) for variable in variables]
    try:
        yield
    except BaseException:
        for variable, value in contents:
            write(variable, value)
        raise


def arrays_unchanged_on_failure(variables: Iterable[object]) -> AbstractContextManager[None]:
    """Restore the values of those variables that are arrays if the block raises."""
    arrays = [
        value for value in variables if isinstance(value, np.ndarray) and value.flags.writeable
    ]
    return unchanged_on_failure(
        arrays, lambda array: array.copy(), lambda array, value: array.__setitem__(..., value)
    )


def inner_config(config: dict[str, Any], key: str = "inner_optimizer") -> Any:
    """Take the inner optimizer out of a config; raise KeyError if it is missing."""
    if key not in config:
        raise KeyError(
            f"config={config!r} lacks {key!r}; give an optimizer, or a dict with 'class_name' and "
            "'config'"
        )
    return config.pop(key)
