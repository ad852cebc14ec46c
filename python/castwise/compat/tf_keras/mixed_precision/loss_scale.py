"""TF 2.4's loss scales: objects that a training loop asks for the scale and tells gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from castwise import loss_scale as values
from castwise.keras_objects import from_dictionary

__all__ = ["DynamicLossScale", "FixedLossScale", "LossScale", "deserialize", "get", "serialize"]

DYNAMIC = "dynamic"
"""The identifier of a `DynamicLossScale` as it comes."""


class LossScale(ABC):
    """What a loss is multiplied by before gradients are taken."""

    @abstractmethod
    def __call__(self) -> np.float32:
        """The scale of this step."""

    @abstractmethod
    def update(self, grads: Any) -> tuple[None, bool]:
        """Tell the gradients of this step, before they are divided by the scale.

        Parameters
        ----------
        grads : array, or nested structure of arrays and None
            As they come from the scaled loss.

        Returns
        -------
        None, in the place of TensorFlow's operation, and whether the gradients are to be applied.

        """

    @abstractmethod
    def get_config(self) -> dict[str, Any]:
        """The arguments that make this loss scale again, as it was at first."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LossScale:
        """The loss scale that `get_config` came from."""
        return cls(**config)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LossScale):
            return NotImplemented
        return type(self) is type(other) and repr(self) == repr(other)

    __hash__ = None  # type: ignore[assignment] # a loss scale changes


class FixedLossScale(LossScale):
    """A loss scale that never changes.

    Parameters
    ----------
    loss_scale_value : int or float
        1 or more. As in TensorFlow infinity and NaN are taken, and numpy's numbers are not.

    Raises
    ------
    ValueError
        Another type, or below 1.

    Notes
    -----
    As in TensorFlow, gradients are applied even if they are not finite.

    """

    def __init__(self, loss_scale_value: float) -> None:
        if not isinstance(loss_scale_value, int | float) or loss_scale_value < 1:
            raise ValueError(
                f"loss_scale_value={loss_scale_value!r} must be a Python int or float of at least 1"
            )
        self._value = float(loss_scale_value)

    def __call__(self) -> np.float32:
        """The scale."""
        return _single(self._value)

    def update(self, grads: Any) -> tuple[None, bool]:
        """Nothing changes, and the gradients are applied, whatever they are."""
        del grads
        return None, True

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this loss scale again."""
        return {"loss_scale_value": self._value}

    def __repr__(self) -> str:
        return f"FixedLossScale({self._value})"


class DynamicLossScale(LossScale):
    """A loss scale that grows while gradients are finite, and backs off when they are not.

    Parameters
    ----------
    initial_loss_scale : float
        The first scale.
    increment_period : int
        Finite steps after which it grows.
    multiplier : float
        What it is multiplied by to grow, and divided by to back off, but never below 1.

    """

    def __init__(
        self,
        initial_loss_scale: float = 2.0**15,
        increment_period: int = 2000,
        multiplier: float = 2.0,
    ) -> None:
        self.initial_loss_scale = float(initial_loss_scale)
        self.increment_period = int(increment_period)
        self.multiplier = float(multiplier)
        self._value = values.DynamicLossScale(
            self.initial_loss_scale, self.increment_period, self.multiplier, preset="tf"
        )

    def __call__(self) -> np.float32:
        """The scale of this step."""
        return _single(self._value.scale)

    def update(self, grads: Any) -> tuple[None, bool]:
        """Grow or back off by whether all gradients are finite, and apply them if they are."""
        self._value, applies = self._value.next(values.all_finite(grads))
        return None, applies

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this loss scale again, as it was at first."""
        return {
            "initial_loss_scale": self.initial_loss_scale,
            "increment_period": self.increment_period,
            "multiplier": self.multiplier,
        }

    def __repr__(self) -> str:
        state = {
            "current_loss_scale": str(self()),
            "num_good_steps": self._value.counter,
            **self.get_config(),
        }
        return f"DynamicLossScale({', '.join(f'{key}={value}' for key, value in state.items())})"


def _single(value: float) -> np.float32:
    """As TensorFlow hands it out; beyond the range it is infinite, which is no surprise there."""
    with np.errstate(over="ignore"):
        return np.float32(value)


CLASSES = {cls.__name__: cls for cls in (FixedLossScale, DynamicLossScale)}


def serialize(loss_scale: LossScale | None) -> dict[str, Any] | None:
    """What TF 2.4 writes for a loss scale."""
    if loss_scale is None:
        return None
    return {"class_name": type(loss_scale).__name__, "config": loss_scale.get_config()}


def deserialize(config: Any, custom_objects: Any = None) -> LossScale:
    """The loss scale that `serialize` wrote. Raises as `castwise.dtype_policies.deserialize`."""
    if not isinstance(config, dict) or "config" not in config:
        raise ValueError(f"config={config!r} must be a dict with 'class_name' and 'config'")
    loss_scale: LossScale = from_dictionary(config, CLASSES, custom_objects)
    return loss_scale


def get(identifier: Any, custom_objects: Any = None) -> LossScale | None:
    """The loss scale that an argument means.

    Parameters
    ----------
    identifier : "dynamic", int, float, dict, LossScale or None
        A number is a fixed scale, a dict a config.
    custom_objects : mapping of str to class, optional
        Classes of your own that a config may name.

    Raises
    ------
    ValueError
        It means none.

    """
    if identifier is None or isinstance(identifier, LossScale):
        return identifier
    if isinstance(identifier, dict):
        return deserialize(identifier, custom_objects)
    if isinstance(identifier, int | float):
        return FixedLossScale(identifier)
    if isinstance(identifier, str) and identifier == DYNAMIC:
        return DynamicLossScale()
    raise ValueError(
        f"loss_scale={identifier!r} is no loss scale; give 'dynamic', a number of 1 or more, a "
        "LossScale, its config, or None"
    )
