"""Check the arguments of public functions, before anything is made of them."""

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import UnfitError, finfo

MAX_SIZE = 2**63 - 1  # of an axis of numpy, whose sizes are intp
MAX_SEED = 2**64 - 1
_BLOCK_AXES = 2
_INTEGERS = (int, np.integer)
Array = NDArray[Any]


def native(array: Array) -> Array:
    """Return an array in the machine's byte order: itself, or a copy, as the core needs it."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def integer(name: str, value: object, low: int, high: int) -> int:
    """Return an argument as an int of a range, or raise ValueError that names it."""
    if isinstance(value, _INTEGERS) and not isinstance(value, bool) and low <= value <= high:
        return int(value)
    raise ValueError(f"{name}={value!r} is not valid; use an int from {low} to {high}.")


def block_pair(block: int | Sequence[int]) -> tuple[int, int]:
    """Return a block as (rows, columns), a number as columns; both are 0 for a whole array."""
    if type(block) is tuple and len(block) == _BLOCK_AXES:
        rows, columns = block
        if type(rows) is int and type(columns) is int and rows >= 0 and columns >= 0:
            # Returned itself: what follows takes longer than a small array.
            return block
    parts = (1, block) if isinstance(block, _INTEGERS) else block
    if isinstance(parts, str) or not isinstance(parts, Sequence) or len(parts) != _BLOCK_AXES:
        raise ValueError(f"block={block!r} is not valid; use an int, or (rows, columns).")
    rows, columns = (integer("block", part, 0, MAX_SIZE) for part in parts)
    return rows, columns


def shape_of(shape: object) -> tuple[int, ...]:
    if isinstance(shape, Iterable) and not isinstance(shape, str):
        return tuple(integer("shape", count, 0, MAX_SIZE) for count in shape)
    raise ValueError(f"shape={shape!r} is not valid; use a tuple of ints, one for each axis.")


def magnitude(amax: object) -> float:
    """Return a largest magnitude as a float, or raise ValueError if no array has it."""
    if isinstance(amax, Real) and not isinstance(amax, bool) and 0 <= float(amax) < math.inf:
        return float(amax)
    raise ValueError(f"amax={amax!r} is not valid; use a finite number of 0 or more.")


def check_float(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    name: str = "x",
    shape_error: type[ValueError] = UnfitError,
) -> None:
    """Refuse arrays that are not of a real float dtype, or have no axes."""
    try:
        is_float = finfo(dtype).kind == "float"
    except TypeError:
        is_float = False
    if not is_float:
        if dtype == np.dtype(object):
            raise TypeError(
                f"{name} has dtype object, which holds no numbers; give an array of a real float "
                "dtype, one for each weight of a model."
            )
        raise TypeError(f"{name} has dtype {dtype}; give an array of a real float dtype.")
    if not shape:
        raise shape_error(f"{name} has no axes; reshape it to (1,).")
