"""Quantizers with arguments that are kept, by name, and to and from Keras' dictionaries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from castwise._keras_objects import (
    checked_arguments,
    from_dictionary,
    plain_number,
    serialize_with,
    to_dictionary,
)
from castwise._standard_dtype import standardize_dtype
from castwise.quantization.keras import EPSILON, INT8, Array, abs_max_quantize, code_dtype


class Quantizer:
    """The base class of quantizers: it returns what it is given."""

    def __init__(self, output_dtype: Any = INT8) -> None:
        self.output_dtype = output_dtype

    def __call__(self, x: Any) -> Any:
        """Return the codes of an array; in this class, the array."""
        return x

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Make a quantizer of its config, the arguments."""
        return cls(**checked_arguments(cls, config))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments; NotImplementedError in this class."""
        raise NotImplementedError(f"{type(self).__name__} has no get_config(); write one.")


class AbsMaxQuantizer(Quantizer):
    """`abs_max_quantize` with arguments that are kept.

    Parameters
    ----------
    axis : int or sequence of int, optional
        For calls that name none; -1 if neither does.
    value_range, epsilon, output_dtype
        As for `abs_max_quantize`.

    Raises
    ------
    ValueError
        int8 does not hold `value_range`.

    """

    def __init__(
        self,
        axis: int | Sequence[int] | None = None,
        value_range: Sequence[Any] = (-127, 127),
        epsilon: float = EPSILON,
        output_dtype: Any = INT8,
    ) -> None:
        super().__init__(output_dtype)
        if isinstance(axis, int | np.integer):
            axis = (int(axis),)
        self.axis = None if axis is None else tuple(map(plain_number, axis))
        self.value_range = value_range
        self.epsilon = epsilon
        if output_dtype == INT8:
            code_dtype(value_range, output_dtype)

    def __call__(
        self, x: Any, axis: int | Sequence[int] | None = None, to_numpy: bool = False
    ) -> tuple[Array, Array]:
        """Return the codes and the scale of an array."""
        axes = self.axis if axis is None else axis
        return abs_max_quantize(
            x,
            -1 if axes is None else axes,
            self.value_range,
            self.output_dtype,
            self.epsilon,
            to_numpy,
        )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, as Keras writes them into files."""
        config: dict[str, Any] = {
            "value_range": _plain_numbers(self.value_range),
            "epsilon": plain_number(self.epsilon),
            "output_dtype": _named(self.output_dtype),
        }
        return config if self.axis is None else {**config, "axis": self.axis}


def _plain_numbers(numbers: Sequence[Any]) -> Sequence[Any]:
    """Return a list or tuple of Python's numbers."""
    plain = [plain_number(number) for number in numbers]
    return plain if isinstance(numbers, list) else tuple(plain)


def _named(dtype: Any) -> Any:
    """Return the name of a dtype object, and names as they are."""
    return dtype if isinstance(dtype, str) or dtype is None else standardize_dtype(dtype)


_CLASSES = {
    "Quantizer": Quantizer,
    "quantizer": Quantizer,
    "AbsMaxQuantizer": AbsMaxQuantizer,
    "abs_max_quantizer": AbsMaxQuantizer,
}


def serialize(initializer: Any) -> Any:
    """Return the dictionary of a quantizer; plain values stay, containers go by element."""
    return serialize_with(initializer, _dictionary)


def _dictionary(quantizer: Any) -> dict[str, Any]:
    is_own = type(quantizer) in _CLASSES.values()
    return to_dictionary(quantizer, "keras.quantizers" if is_own else None, serialize)


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Make the quantizer that a dictionary describes; anything else stays.

    Raises
    ------
    ValueError, TypeError
        It describes none that is known.

    """
    if not isinstance(config, Mapping):
        return config
    return from_dictionary(config, _CLASSES, custom_objects)


def get(identifier: Any, **kwargs: Any) -> Any:
    """Return the quantizer that a name, a dictionary, a class or an object stands for.

    None stays None. A class is given `kwargs` as its first argument, as Keras does.

    Raises
    ------
    ValueError
        It stands for none.

    """
    if identifier is None:
        return None
    quantizer: Any = identifier
    if isinstance(identifier, dict):
        quantizer = deserialize(identifier)
    elif isinstance(identifier, str):
        quantizer = _CLASSES.get(identifier)
    if not callable(quantizer):
        raise ValueError(  # noqa: TRY004  (as Keras does)
            f"identifier={identifier!r} is not a quantizer; use one of {', '.join(_CLASSES)}, a "
            "dictionary of serialize(), or an object that is called with an array"
        )
    if inspect.isclass(quantizer):
        make: Callable[[Any], Any] = quantizer
        return make(kwargs)
    return quantizer
