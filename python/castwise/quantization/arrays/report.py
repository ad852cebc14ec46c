"""The report of what quantization lost."""

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import CastReport, Comparison, compare, format_name
from castwise._options import Arithmetic
from castwise.quantization.arrays.decode import decode_array
from castwise.quantization.arrays.views import StoredArray
from castwise.rendering import Rendered
from castwise.rendering.sheet import Sheet, Table
from castwise.text.brief import brief_fields, short


@dataclass(frozen=True, slots=True)
class QuantizationReport(Rendered):
    """How decoded values differ from the array that was quantized.

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

    def __sheet__(self) -> Sheet:
        """Return a table of the numbers."""
        rows = [(row.name, short(getattr(self, row.name))) for row in fields(self)]
        return [Table.of((), rows)]


def report_on(
    q: StoredArray, x: NDArray[Any], *, arithmetic: Arithmetic, bits_per_weight: float
) -> QuantizationReport:
    """Compare an array with what a quantized one decodes to, in float64."""
    if x.shape != q.shape:
        raise ValueError(f"x has shape {x.shape}; use {q.shape}.")
    if format_name(x.dtype.name) is None or x.dtype.kind == "c":
        x = x.astype(np.float64)
    comparison = compare(x, decode_array(q, np.float64, arithmetic=arithmetic), measure=True)
    losses = comparison.report
    assert losses is not None and comparison.finite is not None  # noqa: PT018, S101
    assert comparison.finite_equal is not None and comparison.rms_error is not None  # noqa: PT018, S101
    place = _largest_place(comparison) if losses.max_abs_error else None
    index = None if place is None else np.unravel_index(place, x.shape)
    return QuantizationReport(
        elements=x.size,
        equal=comparison.finite_equal,
        zeroed=losses.underflowed,
        not_finite=x.size - comparison.finite,
        max_abs_error=losses.max_abs_error,
        index=None if index is None else tuple(int(axis) for axis in index),
        rms_error=comparison.rms_error,
        sqnr_db=_decibels(losses),
        bits_per_weight=bits_per_weight,
    )


def _largest_place(comparison: Comparison) -> int:
    """Return where the error is largest first; infinite where a finite number is lost."""
    error, place = comparison.largest_difference or (0.0, 0)
    first_lost = comparison.first_lost
    return place if first_lost is None or (math.isinf(error) and place < first_lost) else first_lost


def _decibels(losses: CastReport) -> float:
    if not losses.max_abs_error:
        return math.inf
    return losses.sqnr_db if losses.amax else -math.inf
