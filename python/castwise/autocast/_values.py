"""Check the values and shapes of variables."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast, finfo, read_array
from castwise.autocast._scope import numpy_dtype
from castwise.environment.defaults import floatx

_Method = TypeVar("_Method", bound=Callable[..., Any])

_SHOWN = 8
"""Messages show arrays of up to this many elements."""


def numbers(argument: str, value: object, dtype: np.dtype[Any], owner: str) -> NDArray[Any]:
    """Copy a value to a new array, in the dtype of the variable `owner`.

    ValueError: `value` is not an array of numbers, or it is complex and the dtype is not.
    """
    try:
        array = read_array(argument, value)
        info = finfo(array.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{argument}={short(value)} of {type(value).__name__} is not an array of numbers, "
            f"as variable {owner!r} is: {error}"
        ) from None
    if info.kind == "complex" and finfo(dtype).kind != "complex":
        raise ValueError(
            f"{argument}={short(value)} is complex, and variable {owner!r} {dtype.name}; "
            "give its real or its imaginary part."
        )
    elements = cast(array, dtype)
    # As numpy: Python's integers must not overflow, because the caller chose no dtype.
    counts = (
        array.dtype.kind in "iu" and elements.dtype.kind in "iu" and not hasattr(value, "dtype")
    )
    if counts and not np.array_equal(elements, array):
        raise ValueError(
            f"{argument}={short(value)} does not fit in {dtype.name}, which variable {owner!r} "
            "is; give dtype= or smaller numbers."
        )
    return elements


def checked_shape(
    shape: Iterable[Any], wrong_type: type[Exception] = ValueError
) -> tuple[int, ...]:
    """Return a shape as a tuple. ValueError for negative sizes, `wrong_type` for other values."""
    error = ValueError
    try:
        sizes = tuple(map(operator.index, [None] if isinstance(shape, str | bytes) else shape))
        if min(sizes, default=0) >= 0:
            return sizes
    except TypeError:
        error = wrong_type  # type: ignore[assignment]
    raise error(
        f"shape={shape!r} is not a shape; give a tuple of integers of 0 or more, such as (64, 10)."
    )


def given_once(add_weight: _Method) -> _Method:
    """Raise Keras' ValueError for an argument that is given by position and by name."""

    @functools.wraps(add_weight)
    def wrapper(self: object, *args: object, **options: object) -> Any:
        for name, value in zip(("shape", "initializer", "dtype"), args, strict=False):
            if name in options:
                raise ValueError(
                    f"{name}= is given twice, as {value!r} and as {options[name]!r}; pass the name "
                    "of a weight as name=."
                )
        return add_weight(self, *args, **options)

    return wrapper  # type: ignore[return-value]


def natural_dtype(value: object) -> np.dtype[Any]:
    """Return the default dtype for a value: its own, or Keras' for a Python value."""
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype):
        return dtype.newbyteorder("=")
    try:
        kind = np.asarray(value).dtype.kind
    except (TypeError, ValueError):
        kind = "O"  # refused later
    standard: str = {"b": "bool", "i": "int32", "u": "int32", "c": "complex64"}.get(kind, floatx())
    default: np.dtype[Any] = numpy_dtype(standard)
    return default


def short(value: object) -> str:
    """Write a value for a message, large arrays by their dtype only."""
    if isinstance(value, np.ndarray) and value.size > _SHOWN:
        return f"array of {value.dtype}"
    return repr(value)
