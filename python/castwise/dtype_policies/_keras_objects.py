"""Keras' names of dtypes, from all that it accepts as one, and its dictionaries of objects.

A dictionary has the members module, class_name, config and registered_name.
"""

import inspect
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

import numpy as np

from castwise._core import parse_dtype
from castwise.environment.defaults import floatx

# The names of Python's own types, which do not depend on floatx.
_PYTHON_TYPES: dict[Any, str] = {
    bool: "bool",
    int: parse_dtype("int"),
    float: "float32",
    complex: "complex64",
    str: "string",
}

# Libraries whose dtypes have their name in `str(dtype)` only.
_TEXT_SOURCES = ("torch", "jax.numpy")


def standardize_dtype(dtype: object) -> str:
    """Return Keras 3's name of a dtype.

    Parameters
    ----------
    dtype : str, Python type, numpy, ml_dtypes, jax, torch or TensorFlow dtype, or None
        None is `floatx()`. Of other objects the ``name`` or the ``__name__`` is read.

    Returns
    -------
    str
        `float16`, `float32`, `float64`, `bfloat16`, `float8_e4m3fn`, `float8_e5m2`, `int8` to
        `uint64`, `bool`, `complex64`, `complex128` or `string`.

    Raises
    ------
    ValueError
        Keras has no such dtype. Names are case-sensitive; numpy's short spellings, and formats
        that Keras does not know (`castwise.formats` has more), are refused.
    TypeError
        The argument cannot be hashed (a list, a dict, an array).

    Examples
    --------
    >>> import numpy as np
    >>> standardize_dtype(np.dtype("float16")), standardize_dtype(float), standardize_dtype("int")
    ('float16', 'float32', 'int32')

    """
    if dtype is None:
        return floatx()
    name = _PYTHON_TYPES.get(dtype, dtype)
    if not isinstance(name, str):
        attributes = [attribute for attribute in ("name", "__name__") if hasattr(dtype, attribute)]
        name = getattr(dtype, attributes[0]) if attributes else None
        text = "" if attributes else str(dtype)
        if any(source in text for source in _TEXT_SOURCES):
            name = text.rpartition(".")[2]
    if not isinstance(name, str):
        raise ValueError(  # noqa: TRY004 - as Keras
            f"dtype={dtype!r} is not a dtype; give a name such as 'float32' or a dtype of numpy, "
            "ml_dtypes, jax, torch or TensorFlow"
        )
    standard = parse_dtype(name)
    if standard != name and name is not dtype:
        raise ValueError(f"dtype={dtype!r} is called {name!r}, which is not a dtype of Keras")
    return standard


def is_float_dtype(dtype: object) -> bool:
    """Tell whether a dtype is a real float: float64 down to the float8s; None is floatx.

    Raises as `standardize_dtype`.

    Examples
    --------
    >>> is_float_dtype("float8_e4m3fn"), is_float_dtype("int8")
    (True, False)

    """
    return standardize_dtype(dtype).startswith(("float", "bfloat"))


def is_int_dtype(dtype: object) -> bool:
    """Tell whether a dtype is an integer, signed or not, and not bool.

    Raises as `standardize_dtype`.

    Examples
    --------
    >>> is_int_dtype(np.int8), is_int_dtype("bool")
    (True, False)

    """
    return standardize_dtype(dtype).startswith(("int", "uint"))


class _Configured(Protocol):
    """An object that says by which arguments it is made again."""

    def get_config(self) -> dict[str, Any]: ...


def serialize_with(value: object, of_object: Callable[[Any], object]) -> object:
    """Serialize a value: plain ones as they are, containers by element, others by `of_object`."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        return type(value)(serialize_with(item, of_object) for item in value)
    if isinstance(value, dict):
        return {key: serialize_with(item, of_object) for key, item in value.items()}
    return of_object(value)


def checked_arguments(cls: type, config: object) -> dict[str, Any]:
    if not isinstance(config, Mapping):
        raise TypeError(f"config={config!r} of {cls.__name__} must be a dict of its arguments")
    signature = inspect.signature(cls)
    try:
        signature.bind(**config)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "none"
        raise TypeError(
            f"config={dict(config)!r} is not one of {cls.__name__} ({error}); its arguments are "
            f"{takes}"
        ) from None
    return dict(config)


def plain_number(value: object) -> Any:  # noqa: ANN401  (as it is given)
    """Return numpy's scalars as Python's, which JSON can hold, and other values as they are."""
    return value.item() if isinstance(value, np.generic) else value


def to_dictionary(
    instance: _Configured, keras_module: str | None, serialize: Callable[[Any], Any]
) -> dict[str, Any]:
    """Return the dictionary of an object with `get_config`, of a class of Keras or another one."""
    cls = type(instance)
    own_module = None if cls.__module__ == "__main__" else cls.__module__
    return {
        "module": keras_module or own_module,
        "class_name": cls.__name__,
        "config": {key: serialize(value) for key, value in instance.get_config().items()},
        "registered_name": None if keras_module else cls.__name__,
    }


def from_dictionary(
    config: Mapping[str, Any], classes: Mapping[str, Any], custom_objects: Mapping[str, Any] | None
) -> Any:  # noqa: ANN401  (of any class)
    try:
        return _from_dictionary(config, classes, custom_objects or {})
    except RecursionError as error:
        raise ValueError(
            "config is nested too deeply to describe an object; give one that serialize returned"
        ) from error


def _from_dictionary(
    config: Mapping[str, Any], classes: Mapping[str, Any], custom: Mapping[str, Any]
) -> Any:  # noqa: ANN401  (of any class)
    if "class_name" not in config:
        raise ValueError(
            f"config={dict(config)!r} has no 'class_name', as in "
            "{'class_name': 'DTypePolicy', 'config': {'name': 'float32'}}"
        )
    name, registered_name = config["class_name"], config.get("registered_name") or None
    for key, text in (("class_name", name), ("registered_name", registered_name)):
        if not isinstance(text, Hashable):
            raise TypeError(f"config has {key}={text!r}, which must be a str")
    cls = custom.get(registered_name or name) or custom.get(name)
    if cls is None and config.get("module", "") is None:
        raise TypeError(f"config names the custom class {name!r}; give it in custom_objects")
    cls = cls or classes.get(name)
    if cls is None:
        remedy = f"use one of {', '.join(classes)}, or " if classes else ""
        raise ValueError(
            f"config names the class {name!r}, which is unknown; {remedy}give the class in "
            "custom_objects"
        )
    arguments = config.get("config")
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict) or not hasattr(cls, "from_config"):
        raise TypeError(f"{name!r} cannot be made from config={arguments!r}; it must be a dict")
    if "custom_objects" in inspect.signature(cls.from_config).parameters:
        return cls.from_config(arguments, custom_objects=custom)
    return cls.from_config(arguments)
