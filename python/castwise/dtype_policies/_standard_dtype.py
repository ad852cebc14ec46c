"""Keras' names of dtypes, from all that Keras accepts as a dtype."""

from typing import Any

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
