"""The report that a cast's report must give, recounted from codes with fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import castwise
import numpy as np
import oracle
from oracle import Array, Exact, Expected, Format


def fractions(values: Exact) -> list[Fraction | None]:
    """Each finite value; None for the rest."""
    parts = zip(
        values.negative.ravel().tolist(),
        values.significand.ravel().tolist(),
        values.exponent.ravel().tolist(),
        values.finite.ravel().tolist(),
        strict=True,
    )
    return [
        (-1 if minus else 1) * significand * Fraction(2) ** exponent if finite else None
        for minus, significand, exponent, finite in parts
    ]


def as_float(value: Fraction | int) -> float:
    """Round to float64, to infinity beyond its range."""
    return float(value) if abs(value) < 2**1024 else math.inf


def decibels(signal: Fraction, noise: Fraction) -> float:
    """Compute ten times the logarithm of signal / noise, however far from 1 that is."""
    if not signal:
        return math.nan
    if not noise:
        return math.inf
    ratio = signal / noise
    return 10 * (math.log10(ratio.numerator) - math.log10(ratio.denominator))


def recount(
    before: Exact, results: Array, expected: Expected, target: Format, *, nan: str
) -> dict[str, Any]:
    """Report on values that became these codes.

    With nan="zero" a NaN is never exact. Errors are infinite where a number became infinite or NaN.
    """
    part = oracle.component(target)
    after = oracle.decode(results, part)
    pairs = list(zip(fractions(before), fractions(after), strict=True))
    both = [(x, y) for x, y in pairs if x is not None and y is not None]
    errors = [(abs(x - y), abs(x)) for x, y in both]
    sizes = [abs(x) for x, _ in pairs if x]
    equal = np.array([x is not None and x == y for x, y in pairs], bool).reshape(results.shape)
    nan_kept = before.nan & (nan != "zero")
    equal |= nan_kept & after.nan
    equal |= before.infinite & after.infinite & (before.negative == after.negative)
    beyond = (expected.overflows & ~nan_kept) | (
        before.infinite & after.finite & (part.kind != "bool")
    )
    kept = after.finite & ~expected.wrapped
    zeroed = np.array([bool(x) and y == 0 for x, y in pairs], bool).reshape(results.shape)
    tiny = 1 << part.mantissa_bits if part.specials not in ("", "exponent-only") else 0
    magnitude = results.astype(np.uint64) & np.uint64(part.magnitude_mask)
    signal = sum((x * x for x, _ in both), Fraction(0))
    noise = sum((error * error for error, _ in errors), Fraction(0))
    lost = any(x is not None and y is None for x, y in pairs)
    return {
        "count": results.size,
        "exact": int(equal.sum()),
        "overflowed": int((beyond & ~kept).sum()),
        "saturated": int((beyond & kept).sum()),
        "underflowed": int((zeroed & ~beyond).sum()),
        "subnormal": int(((magnitude > 0) & (magnitude < tiny)).sum()),
        "nan_in": int(before.nan.sum()),
        "nan_out": int(after.nan.sum()),
        "inf_in": int(before.infinite.sum()),
        "zero_in": sum(x == 0 for x, _ in pairs),
        "amax": as_float(max(sizes, default=0)),
        "amin_nonzero": as_float(min(sizes, default=0)),
        "max_abs_error": math.inf if lost else as_float(max((e for e, _ in errors), default=0)),
        "max_rel_error": (
            math.inf if lost else as_float(max((e / x for e, x in errors if x), default=0))
        ),
        "sqnr_db": -math.inf if lost else decibels(signal, noise),
    }


def sums_of(report: castwise.CastReport) -> tuple[int, int]:
    """Signal and noise, in units of the square of the smallest float64."""
    first, second = (
        sum(word << 64 * place for place, word in enumerate(words, zeros))
        for zeros, words in report.__reduce__()[1][2:]
    )
    return first, second


def alike(report: castwise.CastReport | None, want: castwise.CastReport | None) -> bool:
    """Whether all but the sums is equal to the last bit, and these to 1e-12."""
    if report is None or want is None:
        return report is want
    fields, wanted = report.to_dict(), want.to_dict()
    fields.pop("sqnr_db"), wanted.pop("sqnr_db")
    pairs = zip(sums_of(report), sums_of(want), strict=True)
    return fields == wanted and all(abs(a - b) * 10**12 <= b for a, b in pairs)
