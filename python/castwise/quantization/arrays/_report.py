"""What quantisation lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from castwise._brief import brief_fields, short
from castwise._tables import aligned


@dataclass(frozen=True, slots=True)
class QuantizationReport:
    """How decoded values differ from the array that was quantised.

    Attributes
    ----------
    elements : int
        How many there are.
    equal : int
        How many decode to the same value.
    zeroed : int
        How many decode to zero and were not zero.
    not_finite : int
        How many are infinite or NaN on either side; the errors leave them out.
    max_abs_error : float
        The largest difference.
    index : tuple of int or None
        Where it is first; None if there is no difference.
    rms_error : float
        The root of the mean squared difference.
    sqnr_db : float
        Ten times the decimal logarithm of the mean square over the mean squared difference; inf if
        there is none.
    bits_per_weight : float
        The bits of all parts over the elements.

    """

    elements: int
    equal: int
    zeroed: int
    not_finite: int
    max_abs_error: float
    index: tuple[int, ...] | None
    rms_error: float
    sqnr_db: float
    bits_per_weight: float

    __repr__ = brief_fields

    def __str__(self) -> str:
        """Return a table of the numbers."""
        return aligned([(one.name, short(getattr(self, one.name))) for one in fields(self)])


class _Decodable(Protocol):
    @property
    def shape(self) -> tuple[int, ...] | None: ...
    @property
    def bits_per_weight(self) -> float: ...


def compared(
    q: _Decodable, x: NDArray[Any], decode: Callable[[Any, DTypeLike], NDArray[Any]]
) -> QuantizationReport:
    """Compare an array with what a quantised one decodes to, in float64."""
    if x.shape != q.shape:
        raise ValueError(f"x has shape {x.shape}; use {q.shape}.")
    found, expected = decode(q, "float64"), x.astype(np.float64)
    finite = np.isfinite(found) & np.isfinite(expected)
    error = np.abs(np.where(finite, found, 0.0) - np.where(finite, expected, 0.0))
    largest = float(error.max(initial=0.0))
    count = max(int(finite.sum()), 1)
    noise = float(np.square(error).sum())
    signal = float(np.square(expected, where=finite, out=np.zeros_like(expected)).sum())
    index = np.unravel_index(int(error.argmax()), error.shape) if largest else None
    return QuantizationReport(
        elements=x.size,
        equal=int(((found == expected) & finite).sum()),
        zeroed=int(((found == 0) & (expected != 0)).sum()),
        not_finite=int(x.size - finite.sum()),
        max_abs_error=largest,
        index=None if index is None else tuple(int(i) for i in index),
        rms_error=math.sqrt(noise / count),
        sqnr_db=10 * math.log10(signal / noise) if noise and signal else math.inf,
        bits_per_weight=q.bits_per_weight,
    )
