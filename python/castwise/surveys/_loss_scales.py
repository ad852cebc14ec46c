"""Loss scales that bring gradients into the range of a format, by their survey."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from castwise._core import FormatInfo, cast, finfo
from castwise.surveys._survey import Survey
from castwise.text.brief import brief_fields

_LEAST, _MOST = -126, 127  # exponents of loss scales, which frameworks keep in float32


class LossScales(NamedTuple):
    """A range of loss scales that are powers of two.

    Attributes
    ----------
    lowest, highest : float
        Both are in the range.

    """

    lowest: float
    highest: float

    def intersection(self, other: LossScales) -> LossScales | None:
        """Return the loss scales that are in both ranges; None if there are none."""
        lowest, highest = max(self.lowest, other.lowest), min(self.highest, other.highest)
        return LossScales(lowest, highest) if lowest <= highest else None

    def __repr__(self) -> str:
        return brief_fields(self)

    def __str__(self) -> str:
        exponents = [math.frexp(scale)[1] - 1 for scale in self]
        return " to ".join(f"2^{exponent}" for exponent in exponents)


ALL = LossScales(math.ldexp(1.0, _LEAST), math.ldexp(1.0, _MOST))
"""Those of gradients that are zero."""


def float_format(target: str) -> FormatInfo:
    info = finfo(target)
    if info.kind != "float" or not info.signed:
        raise TypeError(
            f"target={target!r} does not hold gradients; use a signed float format, as 'float16'."
        )
    return info


def fitting_loss_scales(
    survey: Survey, info: FormatInfo, divisor: float, share: float
) -> LossScales | None:
    """Return the loss scales at which a format holds gradients, as `GradientSurvey` says."""
    # The surveyed gradients are multiples by `divisor` of those without a loss scale.
    if not 0 <= share < 1:
        raise ValueError(f"share={share!r} is not valid; use a number from 0 to below 1.")
    if survey.infinities or survey.nans:
        return None
    exponents, counts, _ = survey.binades
    if not len(exponents):
        return ALL
    up_to = np.cumsum(counts)
    largest_exponent = int(
        exponents[np.searchsorted(up_to, share * float(up_to[-1]), side="right")]
    )
    significand, exponent = math.frexp(divisor)
    # The divisor is at most two to this power, and equal if it is a power of two.
    exponent -= significand == 0.5  # noqa: PLR2004
    lowest = max(math.frexp(info.smallest_subnormal)[1] - 1 - largest_exponent + exponent, _LEAST)
    highest = _highest(survey.amax, info, divisor)
    if lowest > highest:
        return None
    return LossScales(math.ldexp(1.0, lowest), math.ldexp(1.0, highest))


def _highest(amax: float, info: FormatInfo, divisor: float) -> int:
    """Return the exponent of the highest loss scale at which a magnitude does not overflow."""
    limit = math.frexp(float(info.max))[1] - math.frexp(amax)[1] + math.frexp(divisor)[1] + 1
    exponent = min(limit, _MOST)
    while exponent >= _LEAST and not _holds(amax, info, math.ldexp(1.0, exponent) / divisor):
        exponent -= 1
    return exponent


def _holds(amax: float, info: FormatInfo, scale: float) -> bool:
    target = info.name if info.dtype is None else info.dtype
    _, report = cast(np.array([amax]), target, scale=scale, report=True)
    return not (report.overflowed or report.saturated)
