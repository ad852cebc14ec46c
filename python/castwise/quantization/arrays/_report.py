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
        How many are infinite or NaN on either side; the errors leave out those that were so before.
    max_abs_error : float
        The largest difference; inf if one that was finite decodes to infinity or NaN.
    index : tuple of int or None
        Where it is first; None if there is no difference.
    rms_error : float
        The root of the mean squared difference.
    sqnr_db : float
        Ten times the decimal logarithm of the mean square over the mean squared difference; inf if
        there is none, -inf if it is inf.
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
    known = np.isfinite(expected)
    finite = np.isfinite(found) & known
    before = np.where(known, expected, 0.0)
    error = np.abs(np.where(finite, found, np.where(known, np.inf, 0.0)) - before)
    largest = float(error.max(initial=0.0))
    # Of numbers below 2, whose squares neither overflow nor vanish.
    unit = math.ldexp(1.0, math.frexp(float(np.abs(before).max(initial=0.0)) or 1.0)[1] - 1)
    count = max(int(known.sum()), 1)
    noise = float(np.square(error / unit).sum())
    signal = float(np.square(before / unit).sum())
    index = np.unravel_index(int(error.argmax()), error.shape) if largest else None
    return QuantizationReport(
        elements=x.size,
        equal=int(((found == expected) & finite).sum()),
        zeroed=int(((found == 0) & (expected != 0)).sum()),
        not_finite=int(x.size - finite.sum()),
        max_abs_error=largest,
        index=None if index is None else tuple(int(i) for i in index),
        rms_error=math.sqrt(noise / count) * unit,
        sqnr_db=_decibels(signal, noise),
        bits_per_weight=q.bits_per_weight,
    )


def _decibels(signal: float, noise: float) -> float:
    if not noise:
        return math.inf
    return 10 * (math.log10(signal) - math.log10(noise)) if signal else -math.inf
