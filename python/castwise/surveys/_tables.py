"""The tables of a survey, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise.text.brief import brief_fields

BLOCK_BINADES = 64  # binades of a block that are told apart, as `rust/core/src/survey` does


class Binades(NamedTuple):
    """Finite elements that are not zero, by the binade of their magnitude, the lowest first.

    Attributes
    ----------
    exponents : ndarray of int64
        Magnitudes are at least two to this power, and below the next power.
    counts : ndarray of uint64
        How many elements there are in each.
    squares : ndarray of float64
        The sum of their squares, in units of four to the exponent; relative to 2**-23 exact.

    """

    exponents: NDArray[np.int64]
    counts: NDArray[np.uint64]
    squares: NDArray[np.float64]

    def __repr__(self) -> str:
        return brief_fields(self)


class Blocks(NamedTuple):
    """Blocks of a shape by their largest finite magnitude; blocks of zeros are left out.

    Attributes
    ----------
    eighths : ndarray of int64, shape (rows,)
        Eight times the exponent of the maximum, and 0 to 7 for the eighth of the binade it is in.
    blocks : ndarray of uint64, shape (rows,)
        How many blocks have such a maximum.
    counts : ndarray of uint64, shape (rows, 64)
        Their elements by how many binades they are below the maximum's; the last column is 63 and
        more. Zeros are not counted.
    squares : ndarray of float64, shape (rows, 64)
        The sums of their squares, in units of four to the exponent of the maximum; 0 in the last
        column.

    """

    eighths: NDArray[np.int64]
    blocks: NDArray[np.uint64]
    counts: NDArray[np.uint64]
    squares: NDArray[np.float64]

    def __repr__(self) -> str:
        return brief_fields(self)


class Magnitudes(NamedTuple):
    """The tables of a survey that do not go by blocks."""

    exponents: NDArray[np.int64]
    counts: NDArray[np.uint64]
    squares: NDArray[np.float64]
    largest: float
    smallest: float
    significant_bits: Mapping[int, int]
    values: Mapping[float, int] | None
    elements: int
    zeros: int
    infinities: int
    nans: int
