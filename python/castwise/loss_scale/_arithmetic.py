"""Multiply and divide by a loss scale as other libraries do, also by 0 and infinity."""

import numbers
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from castwise import _trees as trees
from castwise._core import finfo
from castwise._numbers import is_floating


def times(value: NDArray[Any] | np.generic, factor: object) -> Any:
    """Multiply by numpy's rules of promotion, without warnings of overflow."""
    with np.errstate(all="ignore"):
        return value * factor  # type: ignore[operator]


def times_as_torch(output: NDArray[Any] | np.generic, scale: np.float32) -> Any:
    """Multiply by a float32 of rank 0 in float32, then cast back unless the value has rank 0."""
    if not (is_floating(output.dtype) or output.dtype.kind == "c"):
        return times(output.astype(np.float32), scale)
    product = times(output, scale)
    with np.errstate(over="ignore", invalid="ignore"):
        return product.astype(output.dtype) if np.ndim(output) else product


def reciprocal(scale: float | np.float32) -> np.float32:
    """Return the float32 reciprocal by IEEE 754: infinity for 0, 0 for infinity."""
    with np.errstate(all="ignore"):
        return np.float32(1) / np.float32(scale)


def is_usable(scale: float | np.float32) -> bool:
    """Tell whether `castwise.loss_scale.unscale` accepts a scale: it and 1 / it are finite."""
    return bool(np.isfinite(scale) and np.isfinite(reciprocal(scale)))


def is_number(value: ArrayLike) -> bool:
    """Tell whether a value is a real number, or an array of one, and not a bool or a text."""
    if isinstance(value, numbers.Real):
        return not isinstance(value, bool)
    return np.size(value) == 1 and np.asarray(value).dtype.kind not in "bcOSU"


def number(name: str, value: object, kind: type[float] | type[int] = float) -> Any:
    """Convert an argument by `kind`; put its name and value into the exceptions."""
    try:
        return kind(value)  # type: ignore[arg-type, call-overload]
    except (TypeError, ValueError, OverflowError) as error:
        example = "32768.0" if kind is float else "2000"
        raise (TypeError if isinstance(error, TypeError) else ValueError)(
            f"{name}={value!r} is not valid; use a number, as {example}."
        ) from error


def require_float(argument: str, dtype: np.dtype[Any]) -> None:
    """Raise TypeError for a dtype that is not one of castwise's real floats."""
    try:
        is_float = finfo(dtype).kind == "float"
    except TypeError:
        is_float = False
    if not is_float:
        raise TypeError(
            f"{argument} is {dtype}, which is not a real float; leave it out (None), or cast it "
            "to a float first."
        )


def refuse_integers(argument: str, grads: object) -> None:
    """Raise TypeError for integers, as TensorFlow does when it checks that they are finite."""
    for path, leaf in trees.leaves(grads):
        if np.asarray(leaf).dtype.kind in "iub":
            where = f"{argument} at {path!r}" if path else argument
            raise TypeError(f"{where} holds integers; gradients are floats or None.")
