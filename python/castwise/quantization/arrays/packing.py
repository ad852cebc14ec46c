"""Pack codes into containers, and order scales in tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from castwise._core import pack_codes, read_array, unpack_codes
from castwise._core import swizzle_scales as swizzle_array
from castwise._core import unswizzle_scales as unswizzle_array
from castwise._options import Packing
from castwise.quantization.arrays._arguments import MAX_SIZE, integer, native
from castwise.quantization.producers.layouts import TILE, container_count, padded_shape
from castwise.text.wording import check_switch

_WORDS = ("padded", "awq")


def pack(
    codes: NDArray[Any], bits: int, *, layout: Packing = "dense", dtype: DTypeLike | None = None
) -> NDArray[Any]:
    """Pack codes along the last axis.

    Parameters
    ----------
    codes : ndarray of int8 or uint8
        (..., columns); the low `bits` of each are packed.
    bits : int
        1 to 8.
    layout : str
        Where codes stand: "dense" (a little-endian bit stream, the first code lowest),
        "high-first" (as dense, with the nibbles of each byte swapped), "padded" (32 // bits codes
        in each word of 32 bits), "awq" (nibbles of a word in the order 0, 2, 4, 6, 1, 3, 5, 7),
        "halves-16" and "halves-32" (4-bit codes j and j + half in the same byte, in blocks of so
        many).
    dtype : dtype, optional
        Of the containers: 1 byte or 4. By default uint8, and int32 for "padded" and "awq".

    Returns
    -------
    ndarray
        (..., containers). Bits that no code fills are 0.

    Raises
    ------
    TypeError
        `codes` is not of one byte each.
    ValueError
        Unknown layout, or bits that it cannot have.

    Examples
    --------
    >>> pack(np.array([1, 2, 3], np.uint8), 4)
    array([33,  3], dtype=uint8)

    """
    array = _rows("codes", codes)
    if array.dtype.itemsize != 1:
        raise TypeError(f"codes has dtype {array.dtype}; give int8 or uint8.")
    bits = integer("bits", bits, 1, 8)
    kind = np.dtype(dtype if dtype is not None else np.int32 if layout in _WORDS else np.uint8)
    count = container_count(array.shape[-1], bits, kind.itemsize, layout)
    out = np.zeros((*array.shape[:-1], count), kind)
    if out.size:
        pack_codes(np.atleast_2d(array), np.atleast_2d(out), bits=bits, layout=layout)
    return out


def unpack(
    packed: NDArray[Any],
    bits: int,
    *,
    layout: Packing = "dense",
    columns: int | None = None,
    signed: bool = False,
) -> NDArray[Any]:
    """Unpack codes along the last axis.

    Parameters
    ----------
    packed : ndarray
        (..., containers) of 1 or 4 bytes.
    bits, layout
        As for `pack`.
    columns : int, optional
        How many codes there are; by default all that the containers have room for.
    signed : bool
        Extend the sign of each code.

    Returns
    -------
    ndarray of uint8, or int8 if signed
        (..., columns).

    Raises
    ------
    TypeError
        Containers are not of 1 byte or 4.
    ValueError
        Unknown layout, bits that it cannot have, or more columns than there is room for.

    Examples
    --------
    >>> unpack(np.array([33, 3], np.uint8), 4, columns=3)
    array([1, 2, 3], dtype=uint8)

    """
    array = _rows("packed", packed)
    check_switch("signed", signed)
    if array.dtype.itemsize not in {1, 4}:
        raise TypeError(f"packed has dtype {array.dtype}; give containers of 1 byte or 4.")
    bits = integer("bits", bits, 1, 8)
    width = array.dtype.itemsize * 8
    room = (
        array.shape[-1] * (width // bits) if layout == "padded" else array.shape[-1] * width // bits
    )
    count = room if columns is None else integer("columns", columns, 0, MAX_SIZE)
    if count > room:
        raise ValueError(f"columns={columns} is not valid; there is room for {room}.")
    used = container_count(count, bits, array.dtype.itemsize, layout)
    out = np.empty((*array.shape[:-1], count), np.int8 if signed else np.uint8)
    used_part = np.atleast_2d(array)[..., :used]
    if out.size:
        unpack_codes(used_part, np.atleast_2d(out), bits=bits, layout=layout)
    return out


def _rows(name: str, value: ArrayLike) -> NDArray[Any]:
    """Return an array that has a last axis."""
    array = native(read_array(name, value))
    if array.ndim == 0:
        raise ValueError(f"{name} has no axes; give an array of one or more.")
    return array


def swizzle_scales(scales: NDArray[Any]) -> NDArray[Any]:
    """Reorder scales of one byte into tiles of 128x4, as cuBLAS reads them.

    Parameters
    ----------
    scales : ndarray
        (..., rows, columns) of a dtype of one byte.

    Returns
    -------
    ndarray
        (..., rows rounded up to 128, columns rounded up to 4); padding is 0.

    Raises
    ------
    TypeError
        They are not of one byte.
    ValueError
        It has no rows and columns.

    Examples
    --------
    >>> from castwise.quantization import swizzle_scales, unswizzle_scales
    >>> scales = np.arange(128 * 4, dtype=np.uint8).reshape(128, 4)
    >>> bool((unswizzle_scales(swizzle_scales(scales), 128, 4) == scales).all())
    True

    """
    array = _scales("scales", scales)
    out = np.zeros((*array.shape[:-2], *padded_shape(array.shape[-2:], TILE)), array.dtype)
    swizzle_array(array.view(np.uint8), out.view(np.uint8))
    return out


def unswizzle_scales(swizzled: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
    """Undo `swizzle_scales`.

    Parameters
    ----------
    swizzled : ndarray
        (..., a multiple of 128, a multiple of 4) of a dtype of one byte.
    rows, columns : int
        Of the scales without padding.

    Returns
    -------
    ndarray
        (..., rows, columns).

    Raises
    ------
    TypeError
        They are not of one byte.
    ValueError
        The tiles are not those of so many rows and columns.

    Examples
    --------
    >>> from castwise.quantization import unswizzle_scales
    >>> unswizzle_scales(np.zeros((128, 4), np.uint8), 100, 3).shape
    (100, 3)

    """
    array = _scales("swizzled", swizzled)
    rows, columns = integer("rows", rows, 0, MAX_SIZE), integer("columns", columns, 0, MAX_SIZE)
    sizes = padded_shape((rows, columns), TILE)
    if array.shape[-2:] != sizes:
        raise ValueError(
            f"swizzled has shape {array.shape}; {rows} by {columns} scales need {sizes}."
        )
    out = np.empty((*array.shape[:-2], rows, columns), array.dtype)
    unswizzle_array(array.view(np.uint8), out.view(np.uint8))
    return out


def _scales(name: str, value: ArrayLike) -> NDArray[Any]:
    """Return an array of rows and columns of bytes."""
    array = read_array(name, value)
    if array.dtype.itemsize != 1:
        raise TypeError(f"{name} has dtype {array.dtype}; give scales of one byte, as uint8.")
    if array.ndim < len(TILE):
        raise ValueError(f"{name} has shape {array.shape}; it needs rows and columns.")
    return array
