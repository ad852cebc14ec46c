"""Two integers of 4 bits in a byte."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from castwise._core import read_array
from castwise.quantization.arrays._packing import pack, unpack
from castwise.quantization.keras._steps import BYTES, INT8, Array


def pack_int4(
    arr: ArrayLike, axis: int = 0, dtype: str = INT8
) -> tuple[Array, tuple[int, ...], int]:
    """Pack pairs of integers of 4 bits along an axis: the first one into the low bits.

    Parameters
    ----------
    arr : ndarray
        Of `dtype`, any rank; the low four bits of each element are packed.
    axis : int
        Along which pairs lie; a 0 follows the last one of an odd number.
    dtype : {"int8", "uint8"}
        Of `arr` and of the result.

    Returns
    -------
    packed : ndarray
        Of half the length along `axis`, rounded up.
    shape : tuple of int
        Its shape.
    length : int
        Of `arr` along `axis`.

    Raises
    ------
    ValueError
        An unknown `dtype`; an axis out of bounds.
    TypeError
        `arr` has another dtype.

    """
    array = read_array("arr", arr)
    _check_byte(dtype)
    if array.dtype.name != dtype:
        raise TypeError(f"arr has dtype {array.dtype}, not dtype={dtype!r}; cast arr to it first.")
    moved = np.moveaxis(array, axis, -1)
    packed = np.moveaxis(pack(moved, 4, dtype=dtype), -1, axis)
    return packed, packed.shape, moved.shape[-1]


def unpack_int4(packed: ArrayLike, orig_len: int, axis: int = 0, dtype: str = INT8) -> Array:
    """Unpack what `pack_int4` has packed.

    Parameters
    ----------
    packed : ndarray
        Of int8 or uint8.
    orig_len : int
        The length along `axis` before packing.
    axis : int
        As for `pack_int4`.
    dtype : {"int8", "uint8"}
        int8: from -8 to 7; uint8: from 0 to 15.

    Returns
    -------
    ndarray
        Of `dtype`.

    Raises
    ------
    ValueError
        An unknown `dtype`; an axis out of bounds; more elements than are packed.
    TypeError
        `packed` is not of int8 or uint8.

    """
    array = read_array("packed", packed)
    _check_byte(dtype)
    if array.dtype.name not in BYTES:
        raise TypeError(f"packed has dtype {array.dtype}; give int8 or uint8.")
    moved = np.moveaxis(array, axis, -1)
    room = moved.shape[-1] * 2
    if not 0 <= orig_len <= room:
        raise ValueError(f"orig_len={orig_len} is not valid; {room} elements are packed.")
    return np.moveaxis(unpack(moved, 4, columns=orig_len, signed=dtype == INT8), -1, axis)


def _check_byte(dtype: str) -> None:
    if dtype not in BYTES:
        raise ValueError(f"dtype={dtype!r} is not valid; use 'int8' or 'uint8'.")
