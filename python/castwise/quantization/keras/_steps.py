"""The arithmetic of Keras: arguments as arrays, and steps that are rounded to a dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from castwise._core import cast, finfo, in_default_environment, read_array
from castwise._global_state import floatx
from castwise._standard_dtype import standardize_dtype

Array = NDArray[Any]
_P = ParamSpec("_P")
_R = TypeVar("_R")

BFLOAT16 = np.dtype(ml_dtypes.bfloat16).name
FLOATS = ("float16", BFLOAT16, "float32", "float64")
INT8 = np.dtype(np.int8).name
BYTES = (INT8, np.dtype(np.uint8).name)
EPSILON = 1e-7
MATRIX = 2


def undisturbed(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compute in the default floating-point environment, without numpy's warnings."""

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with np.errstate(all="ignore"):
            return in_default_environment(partial(function, *args, **kwargs))

    return called


class Steps:
    """Arithmetic of a dtype: values are held in float32 or float64, and rounded after each step."""

    def __init__(self, *dtypes: DTypeLike) -> None:
        """Take the dtype of the result of floats of these dtypes."""
        names = {np.dtype(dtype) for dtype in dtypes}
        single = np.dtype(np.float32)
        self.dtype = single if len(names) > 1 else names.pop()
        self.wide = self.dtype if self.dtype == np.float64 else single

    def of(self, value: ArrayLike) -> Array:
        """Round values or a number to the dtype."""
        array = value if isinstance(value, np.ndarray | np.generic) else np.array(value, self.dtype)
        return cast(cast(array, self.dtype, copy=False), self.wide, copy=False)

    def __call__(self, wide: Array) -> Array:
        """Round the result of a step."""
        return wide if self.dtype == self.wide else self.of(wide)

    def stored(self, wide: Array) -> Array:
        """Return wide values in the dtype."""
        return cast(wide, self.dtype, copy=False)


def array_of(name: str, value: ArrayLike) -> Array:
    """Return an argument as an array; Python's numbers get Keras' default dtype."""
    array = read_array(name, value)
    return array if hasattr(value, "dtype") else cast(array, floatx())


def floats_of(name: str, value: ArrayLike, *, in_numpy: bool = False) -> Array:
    """Return an array, or raise ValueError if Keras computes with no floats of its dtype.

    float64 becomes float32, unless Keras computes `in_numpy`, outside of its backend.
    """
    array = array_of(name, value)
    if array.dtype.name not in FLOATS:
        raise ValueError(
            f"{name} has dtype {array.dtype}, which is not valid; cast it to one of "
            f"{', '.join(FLOATS)} first."
        )
    # By its name, so that bytes are in the order of this machine.
    name = array.dtype.name
    return cast(array, "float32" if name == "float64" and not in_numpy else name, copy=False)


def float_dtype(name: str, value: object) -> np.dtype[Any]:
    dtype_name = standardize_dtype(value)
    if finfo(dtype_name).kind != "float":
        raise ValueError(f"{name}={value!r} is not valid; use a float, such as 'float32'.")
    return np.dtype(np.float32 if dtype_name == "float64" else finfo(dtype_name).dtype)


def code_dtype(value_range: Sequence[float], dtype: object) -> tuple[float, float, str]:
    """Return the smallest and the largest code and their dtype, which must hold them."""
    low, high = value_range
    name = standardize_dtype(dtype)
    info = finfo(name)
    if not info.min <= low <= high <= info.max:
        raise ValueError(
            f"value_range={tuple(value_range)} is not valid for {name}; use numbers from "
            f"{info.min} to {info.max}, the smaller one first."
        )
    return low, high, name
