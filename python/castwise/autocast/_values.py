"""Values and shapes that variables are given."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast, finfo
from castwise._global_state import floatx
from castwise.autocast._scope import numpy_dtype

_Method = TypeVar("_Method", bound=Callable[..., Any])

_SHOWN = 8
"""Up to how many elements an array stands in a message."""


def numbers(argument: str, value: Any, dtype: np.dtype[Any], owner: str) -> NDArray[Any]:
    """A value as an array of its own, in the dtype of the variable `owner`.

    Raises
    ------
    ValueError
        It is no array of numbers, or complex and the dtype is not.

    """
    try:
        array = np.asarray(value)
        known = finfo(array.dtype)
    except (TypeError, ValueError):
        raise ValueError(
            f"{argument}={short(value)} of {type(value).__name__} is no array of numbers, "
            f"which variable {owner!r} is; give an array, a number or a list of numbers."
        ) from None
    if known.kind == "complex" and finfo(dtype).kind != "complex":
        raise ValueError(
            f"{argument}={short(value)} is complex, and variable {owner!r} {dtype.name}; "
            "give its real or its imaginary part."
        )
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(  # noqa: TRY004 - as for other values
            f"{argument}={short(value)} is a masked array, and variable {owner!r} has no mask; "
            "give its `data` or its `filled(value)`."
        )
    stored = cast(array, dtype)
    # Python's integers have no dtype that could be expected to overflow; numpy refuses them, too.
    counts = array.dtype.kind in "iu" and stored.dtype.kind in "iu" and not hasattr(value, "dtype")
    if counts and not np.array_equal(stored, array):
        raise ValueError(
            f"{argument}={short(value)} does not fit in {dtype.name}, which variable {owner!r} "
            "is; give dtype= or smaller numbers."
        )
    return stored


def checked_shape(shape: Any, wrong_type: type[Exception] = ValueError) -> tuple[int, ...]:
    """A shape as a tuple of ints. ValueError for negative ones, `wrong_type` for other values."""
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
    """Refuse arguments that are given by position and by name with Keras' ValueError."""

    @functools.wraps(add_weight)
    def checked(self: Any, *args: Any, **options: Any) -> Any:
        for name, value in zip(("shape", "initializer", "dtype"), args, strict=False):
            if name in options:
                raise ValueError(
                    f"{name}= is given twice, as {value!r} and as {options[name]!r}; pass the name "
                    "of a weight as name=."
                )
        return add_weight(self, *args, **options)

    return checked  # type: ignore[return-value]


def natural_dtype(value: Any) -> np.dtype[Any]:
    """What a value is stored in where nothing else is said: as it is, or as Keras has Python's."""
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype):
        return dtype.newbyteorder("=")
    try:
        kind = np.asarray(value).dtype.kind
    except (TypeError, ValueError):
        kind = "O"  # refused where it is read
    standard: str = {"b": "bool", "i": "int32", "u": "int32", "c": "complex64"}.get(kind, floatx())
    found: np.dtype[Any] = numpy_dtype(standard)
    return found


def short(value: Any) -> str:
    """A value for a message: small ones in full."""
    array = isinstance(value, np.ndarray) and value.size > _SHOWN
    return f"array of {value.dtype}" if array else repr(value)
