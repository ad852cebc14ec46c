"""Hypothesis strategies for arrays in every memory layout numpy can express."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import support
from hypothesis import strategies as st
from oracle import Array, Format
from sources import random_codes
from support import array_of

SIZE = 1 << 14  # elements by default: several of what a kernel is given at once
shapes = (
    st.lists(st.integers(0, 7) | st.sampled_from([16, 33, 70]), max_size=4)
    .map(tuple)
    .filter(lambda shape: support.FEWER == 1 or math.prod(shape) <= SIZE)
)


class Laid(NamedTuple):
    """Hold the same elements twice: in some layout, and in C order."""

    array: Array
    plain: Array


def _unaligned(array: Array) -> Array:
    """Copy to an odd address."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = 1 + -room.ctypes.data % 16
    moved = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def swapped_bytes(array: Array, row: Format) -> Array:
    """Copy with the bytes of each number (each part, if complex) reversed.

    As integers: ml_dtypes' own `byteswap` does nothing up to its release 0.5.1.
    """
    codes = np.array(array, order="C", ndmin=1).view(row.codes)
    return codes.byteswap().view(array.dtype).reshape(array.shape)


def _swapped(array: Array, row: Format) -> Array:
    """Give the same values in the other byte order, if there is one.

    Not ml_dtypes' complex ones: numpy's `astype` takes their two parts for one number.
    """
    other = array.dtype.newbyteorder()
    if other == array.dtype or (row.part and row.bits == 32):
        return array
    return swapped_bytes(array, row).view(other)


def _strided(draw: st.DrawFn, array: Array) -> Array:
    """Copy into a strided part of a larger array, some axes backwards."""
    steps = [draw(st.sampled_from([1, 2, 3, -1, -2])) for _ in array.shape]
    room = np.zeros(
        [side * abs(step) for side, step in zip(array.shape, steps, strict=True)], array.dtype
    )
    view = room[(..., *(slice(None, None, step) for step in steps))]
    view[...] = array
    return view


@st.composite
def laid_out(draw: st.DrawFn, row: Format) -> Laid:
    """Draw an array of random bits of one format, through a few changes of layout."""
    shape = draw(shapes)
    count = int(np.prod(shape)) * (2 if row.part else 1)
    codes = random_codes(row, count, draw(st.integers(0, 1000)))
    plain = array_of(codes.reshape(*shape, 2) if row.part else codes.reshape(shape), row)
    plain = np.ascontiguousarray(plain).reshape(shape)
    array = plain
    for change in draw(st.lists(st.sampled_from(CHANGES), max_size=4)):
        if change == "strided":
            array = _strided(draw, array)
        elif change == "unaligned":
            array = _unaligned(array)
        elif change == "fortran":
            array = np.asfortranarray(array).reshape(array.shape)
        elif change == "swapped":
            array = _swapped(array, row)
        elif change == "transposed":
            axes = draw(st.permutations(range(array.ndim)))
            array, plain = array.transpose(axes), plain.transpose(axes)
        elif change == "broadcast":
            shape = (draw(st.integers(1, 3)), *array.shape)
            array, plain = np.broadcast_to(array, shape), np.broadcast_to(plain, shape)
        elif change == "read-only":
            array = array.view()
            array.flags.writeable = False
        elif change == "sliced" and array.ndim:
            keep = tuple(slice(draw(st.integers(0, 2)), None) for _ in array.shape)
            array, plain = array[keep], plain[keep]
    return Laid(array, np.array(plain, order="C"))


CHANGES = (
    "strided",
    "unaligned",
    "fortran",
    "swapped",
    "transposed",
    "broadcast",
    "read-only",
    "sliced",
)
