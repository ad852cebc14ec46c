"""Quantizers by name, and to and from Keras' dictionaries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from castwise._keras_objects import from_dictionary, serialize_with, to_dictionary
from castwise.compat.keras.quantizers._classes import AbsMaxQuantizer, Quantizer

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
