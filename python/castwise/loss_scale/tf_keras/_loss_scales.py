"""TF 2.4's loss scales: objects that change, around the preset "tf" of castwise's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from castwise._core import DynamicLossScale as Machine
from castwise.dtype_policies._keras_objects import checked_arguments, from_dictionary
from castwise.loss_scale._arithmetic import number, refuse_integers
from castwise.loss_scale._unscaling import all_finite
from castwise.text.wording import rename_arguments

# Where users find the classes, and pickles.
_MODULE = "castwise.compat.tf_keras.mixed_precision.loss_scale"

# A number that rounds to the largest float32, just below the tie with infinity.
_LARGEST = float(np.finfo(np.float32).max) * (1 + 2.0**-25)


class LossScale(ABC):
    """The number that the loss is multiplied by; calling the object returns it."""

    __module__ = _MODULE

    @abstractmethod
    def __call__(self) -> np.float32:
        """Return the number by which to multiply the next loss."""

    @abstractmethod
    def update(self, grads: Any) -> tuple[None, bool]:
        """Update the number by the unscaled gradients of a step.

        Parameters
        ----------
        grads : array or nested structure of arrays
            None is skipped.

        Returns
        -------
        (None, bool)
            The second element tells whether to apply them.

        """

    @abstractmethod
    def get_config(self) -> dict[str, Any]:
        """Return what `from_config` takes."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LossScale:
        """Make the loss scale of a config, at its first step."""
        return cls(**checked_arguments(cls, config))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LossScale):
            return NotImplemented
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        raise TypeError(f"unhashable type: {type(self).__name__!r}; it changes")


class FixedLossScale(LossScale):
    """A number that never changes; `update` says to apply all gradients, also infinite and NaN.

    Parameters
    ----------
    loss_scale_value : int or float
        1 or more, and finite in float32.

    Raises
    ------
    ValueError
        Anything else.

    """

    __module__ = _MODULE

    def __init__(self, loss_scale_value: float) -> None:
        if not isinstance(loss_scale_value, int | float | np.number):
            raise ValueError(  # noqa: TRY004 - what TensorFlow raises
                f"loss_scale_value={loss_scale_value!r} is not valid; use a Python int or float."
            )
        if not 1 <= loss_scale_value <= _LARGEST:
            raise ValueError(
                f"loss_scale_value={loss_scale_value!r} is not valid; use at least 1, and no more "
                "than a float32 holds."
            )
        self._loss_scale_value: float = float(loss_scale_value)

    def __call__(self) -> np.float32:
        """Return the number by which to multiply every loss."""
        return np.float32(self._loss_scale_value)

    def update(self, grads: Any) -> tuple[None, bool]:
        """Return that the gradients are to be applied; see LossScale."""
        del grads
        return None, True

    def get_config(self) -> dict[str, Any]:
        """Return the argument of the constructor."""
        return {"loss_scale_value": self._loss_scale_value}

    __eq__ = LossScale.__eq__

    def __hash__(self) -> int:
        return hash(self._loss_scale_value)

    def __repr__(self) -> str:
        return f"FixedLossScale({self._loss_scale_value})"


class DynamicLossScale(LossScale):
    """A number that grows while gradients stay finite, and shrinks when one does not.

    Parameters
    ----------
    initial_loss_scale : float
        Finite in float32.
    increment_period : int
        Finite steps after which it is multiplied.
    multiplier : float
        The factor; a step that is not finite divides by it, down to 1.

    Raises
    ------
    ValueError
        A number beyond float32, or NaN; a text that is not a number. Like TensorFlow, it accepts
        all other numbers.
    TypeError
        Not a number.

    """

    __module__ = _MODULE

    def __init__(
        self,
        initial_loss_scale: float = 2**15,
        increment_period: int = 2000,
        multiplier: float = 2.0,
    ) -> None:
        initial = _float32("initial_loss_scale", initial_loss_scale)
        factor = _float32("multiplier", multiplier)
        period = number("increment_period", increment_period, int)
        with rename_arguments(growth_interval="increment_period"):
            self._machine = Machine(initial, period, factor, preset="tf")

    @property
    def initial_loss_scale(self) -> float:
        """The number at the first step."""
        return self._machine.initial_scale

    @property
    def increment_period(self) -> int:
        """Finite steps after which it is multiplied."""
        return self._machine.growth_interval

    @property
    def multiplier(self) -> float:
        """The factor by which it is multiplied and divided."""
        return self._machine.growth_factor

    def __call__(self) -> np.float32:
        """Return the number by which to multiply the next loss."""
        return np.float32(self._machine.scale)

    def update(self, grads: Any) -> tuple[None, bool]:
        """Update the number; see LossScale. TypeError for gradients other than floats."""
        refuse_integers("grads", grads)
        self._machine, applies = self._machine.next(all_finite(grads))
        return None, applies

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, without the current number and count; see LossScale."""
        return {
            "initial_loss_scale": self.initial_loss_scale,
            "increment_period": self.increment_period,
            "multiplier": self.multiplier,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the current number and count, by the names of TensorFlow's checkpoints."""
        return self._machine.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state; ValueError for missing or unknown keys."""
        with rename_arguments(owner="DynamicLossScale"):
            self._machine = self._machine.with_state(state)

    def __repr__(self) -> str:
        return (
            f"DynamicLossScale(current_loss_scale={self()!s}, "
            f"num_good_steps={self._machine.counter}, "
            f"initial_loss_scale={self.initial_loss_scale}, "
            f"increment_period={self.increment_period}, multiplier={self.multiplier})"
        )


def _float32(name: str, value: Any) -> float:
    """Convert an argument to float; ValueError for NaN and numbers beyond float32."""
    float_value: float = number(name, value)
    if not abs(float_value) <= _LARGEST:
        raise ValueError(f"{name}={value!r} is not valid; use a number that a float32 holds.")
    return float_value


_CLASSES = {"FixedLossScale": FixedLossScale, "DynamicLossScale": DynamicLossScale}


def serialize(loss_scale: LossScale | None) -> dict[str, Any] | None:
    """Return the dict that `deserialize` takes; None for None."""
    if loss_scale is None:
        return None
    return {"class_name": type(loss_scale).__name__, "config": loss_scale.get_config()}


def deserialize(
    config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
) -> LossScale:
    """Make the loss scale of a dict with "class_name" and "config".

    Raises
    ------
    ValueError, TypeError
        The class is unknown, or does not accept the config.

    """
    if not isinstance(config, Mapping) or "config" not in config:
        raise ValueError(f"config={config!r} must be a dict with 'class_name' and 'config'")
    loss_scale: LossScale = from_dictionary(config, _CLASSES, custom_objects)
    return loss_scale


def get(identifier: Any, custom_objects: Mapping[str, Any] | None = None) -> LossScale | None:
    """Return the loss scale for an identifier.

    Parameters
    ----------
    identifier : "dynamic", int, float, dict, LossScale or None
        A number is a FixedLossScale, a dict what `serialize` gave.
    custom_objects : mapping of str to class, optional
        Further classes that a dict may name.

    Raises
    ------
    ValueError
        There is no such loss scale.

    """
    if identifier is None or isinstance(identifier, LossScale):
        return identifier
    with rename_arguments(config="identifier", loss_scale_value="identifier"):
        if isinstance(identifier, Mapping):
            return deserialize(identifier, custom_objects)
        if isinstance(identifier, int | float | np.number):
            return FixedLossScale(identifier)  # type: ignore[arg-type]
    if isinstance(identifier, str) and identifier == "dynamic":
        return DynamicLossScale()
    raise ValueError(
        f"identifier={identifier!r} could not be interpreted; use 'dynamic', a number of 1 or "
        "more, None, or a LossScale."
    )
