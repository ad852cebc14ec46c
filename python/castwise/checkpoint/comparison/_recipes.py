"""Recipes that may have made one array of another: casts, and what stands before and after them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import CastReport, FormatInfo, cast, compare, finfo, formats
from castwise._options import Nan, Overflow, Rounding
from castwise.checkpoint._tensors import format_info, numpy_dtype

NEAREST: Rounding = "nearest-even"
_ROUNDINGS: tuple[Rounding, ...] = (
    NEAREST,
    "towards-zero",
    "nearest-away",
    "towards-positive",
    "towards-negative",
)
_OVERFLOWS: tuple[Overflow, ...] = ("ieee", "saturate")
_NANS: tuple[Nan, ...] = ("keep", "zero")
_BYTE_BITS, _HALF_BITS, _SINGLE_BITS = 8, 16, 32
_FEW = 1024
"""Elements on which all recipes are tried; the better ones are tried on the whole sample."""
_KEPT = 24
_LEAST_RATIOS = 2

_FLUSHED = {
    "source": "subnormals of A",
    "result": "subnormals of B",
    "both": "subnormals of A and of B",
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What may have made B of A: two casts at most, a factor, and zeros for subnormals.

    Attributes
    ----------
    rounding, overflow, nan
        Of the cast to the format of B.
    through
        The format that A was cast to before; None if to no other.
    step_rounding, step_overflow
        Of that cast.
    flushed
        "source", "result" or "both": where subnormals became zero.
    factor
        What A was multiplied by, in the cast.

    """

    rounding: Rounding = NEAREST
    overflow: Overflow = "ieee"
    nan: Nan = "keep"
    through: str | None = None
    step_rounding: Rounding = NEAREST
    step_overflow: Overflow = "ieee"
    flushed: str | None = None
    factor: float | None = None

    @property
    def cost(self) -> int:
        """How far from a plain cast it is: of recipes that agree the plainest is taken."""
        step = 0
        if self.through is not None:
            step = 4 + 2 * (self.step_overflow != self.overflow)
            if self.step_rounding != self.rounding:
                step += 1
        return (
            step
            + 2 * (self.rounding != NEAREST)
            + (self.overflow != "ieee")
            + 3 * (self.nan != "keep")
            + 5 * (self.flushed is not None)
            + (self.flushed == "both")
            + 6 * (self.factor is not None)
        )

    @property
    def is_plain(self) -> bool:
        """True for one cast, to the nearest."""
        return self == Recipe()

    @property
    def most_ulps(self) -> int | None:
        """How far its results are at most from the nearest number; None if that is not known."""
        if self.through is not None or self.flushed is not None or self.factor is not None:
            return None
        return int(self.rounding != NEAREST)

    def is_reported(self, target: str) -> bool:
        """Return True if the report of one cast says what all of it lost."""
        if self.flushed is not None or self.factor is not None:
            return False
        return self.through is None or not _loses(self.through, target)

    def applied(self, array: NDArray[Any], target: str, threads: int | None) -> NDArray[Any]:
        """Return what it makes of an array, in the format `target`."""
        if self.flushed in {"source", "both"}:
            array = _flushed(array)
        if self.through is not None:
            array = cast(
                array,
                numpy_dtype(self.through),
                rounding=self.step_rounding,
                overflow=self.step_overflow,
                nan=self.nan,
                threads=threads,
            )
        result = cast(
            array, numpy_dtype(target), scale=self.factor, threads=threads, **self._options()
        )
        return _flushed(result) if self.flushed in {"result", "both"} else result

    def applied_with_report(
        self, array: NDArray[Any], target: str, threads: int | None
    ) -> tuple[NDArray[Any], CastReport]:
        """Return what a recipe that `is_reported` makes of an array, and what that lost."""
        if self.through is None:
            result, report = cast(
                array, numpy_dtype(target), report=True, threads=threads, **self._options()
            )
            return result, report
        step, report = cast(
            array,
            numpy_dtype(self.through),
            report=True,
            threads=threads,
            rounding=self.step_rounding,
            overflow=self.step_overflow,
            nan=self.nan,
        )
        return cast(step, numpy_dtype(target), threads=threads), report

    def _options(self) -> dict[str, Any]:
        return {"rounding": self.rounding, "overflow": self.overflow, "nan": self.nan}

    def to_dict(self) -> dict[str, Any]:
        """Return the options that differ from none: those of `castwise.cast` always."""
        options = self._options() | {"through": self.through}
        if self.through is not None:
            options |= {
                "through_rounding": self.step_rounding,
                "through_overflow": self.step_overflow,
            }
        if self.flushed is not None:
            options["flushed"] = self.flushed
        if self.factor is not None:
            options["scale"] = self.factor
        return options

    def text(self, source: str, target: str) -> str:
        """Say in words what B is."""
        parts = [] if self.factor is None else [f"times {self.factor:.9g}"]
        if self.through is not None and _loses(source, self.through):
            twice = "" if source == target else "twice, "
            parts.append(f"rounded {twice}through {self.through}")
        elif source != target:
            parts.append("rounded once" if _loses(source, target) else "converted exactly")
        elif not parts and self.flushed is None and self.nan == "keep":
            parts.append("unchanged")
        losses = self._losses(target)
        if self.through is not None and self.step_rounding != self.rounding:
            parts.append(f"{self.step_rounding} and then {self.rounding}")
        elif self.rounding != NEAREST:
            parts.append(self.rounding)
        return ", ".join([f"B is A {parts[0]}" if parts else "B is A", *parts[1:], *losses])

    def _losses(self, target: str) -> list[str]:
        """Say in words what becomes of numbers beyond the range, of NaN and of subnormals."""
        parts: list[str] = []
        if self.overflow == "saturate":
            row = finfo(target)
            is_nan = row.specials == "finite-nan" and row.bits == _BYTE_BITS
            also = " where ml_dtypes gives NaN, as torch does from 2.12"
            parts.append(f"saturated{also if is_nan else ''}")
        elif self.step_overflow == "saturate":
            parts.append(f"saturated in {self.through}")
        if self.nan != "keep":
            parts.append("NaN made 0")
        if self.flushed is not None:
            parts.append(f"{_FLUSHED[self.flushed]} made 0")
        return parts


def _loses(source: str, target: str) -> bool:
    """Return True if some value of a format is not one of another."""
    left, right = finfo(source), finfo(target)
    if left.kind != "float" or right.kind != "float":
        return True
    # A widened mantissa loses nothing if the exponents reach as far, with subnormals.
    return not (
        left.mantissa_bits <= right.mantissa_bits
        and left.max <= right.max
        and left.smallest_subnormal >= right.smallest_subnormal
    )


@cache
def recipes(source: str, target: str) -> tuple[Recipe, ...]:
    """List the recipes that may make one format of another, the plainest first."""
    left, right = format_info(source), format_info(target)
    if left.kind != "float" or right.kind not in {"float", "int", "uint"}:
        return (Recipe(),)
    steps = [None, *(name for name in _steps(left, right) if name not in (source, target))]
    flushes = (None, "source", "result", "both") if right.kind == "float" else (None, "source")
    collected: dict[Recipe, None] = {}
    nans = _NANS if right.specials != "exponent-only" else _NANS[:1]  # which has no zero
    for step, rounding, overflow, nan, flushed in product(
        steps, _ROUNDINGS, _OVERFLOWS, nans, flushes
    ):
        if nan != "keep" and flushed is not None:
            continue
        if step is None:
            if source == target and flushed is None and nan == "keep":
                rounding, overflow = NEAREST, "ieee"  # noqa: PLW2901
            collected[Recipe(rounding, overflow, nan, flushed=flushed)] = None
            continue
        if flushed not in (None, "result"):
            continue
        for step_rounding, step_overflow in product({rounding, NEAREST}, _OVERFLOWS):
            recipe = Recipe(
                rounding, overflow, nan, step, step_rounding, step_overflow, flushed=flushed
            )
            if source != target or (rounding, overflow) == (step_rounding, step_overflow):
                collected[recipe] = None
    return tuple(sorted(collected, key=lambda recipe: recipe.cost))


def _steps(left: FormatInfo, right: FormatInfo) -> Iterator[str]:
    """List the formats that may stand between two, the widest first.

    Between others only those of 16 and 32 bits, which frameworks compute in.
    """
    rows = [row for row in map(finfo, formats()) if row.kind == "float" and row.dtype is not None]
    for row in sorted(rows, key=lambda row: -row.bits):
        is_step = _HALF_BITS <= row.bits <= _SINGLE_BITS
        is_narrow = row.bits < _HALF_BITS and row.specials != "exponent-only"
        if (is_step or (is_narrow and left.name == right.name)) and _loses(left.name, row.name):
            yield row.name


def _flushed(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array with zeros of the same sign in place of its subnormals."""
    info = format_info(array.dtype)
    if info.kind != "float" or not info.mantissa_bits or not info.exponent_bits:
        return array
    bits = np.ascontiguousarray(array).view(f"u{info.itemsize}")
    exponent = bits.dtype.type(((1 << info.exponent_bits) - 1) << info.mantissa_bits)
    sign = bits.dtype.type(1 << (info.bits - 1))
    zeros = bits & sign
    if info.specials == "fnuz":  # a zero with a sign is NaN
        is_subnormal = ((bits & exponent) == 0) & (bits != sign)
        zeros = np.zeros_like(bits)
    else:
        is_subnormal = (bits & exponent) == 0
    return np.where(is_subnormal, zeros, bits).view(array.dtype)


class Sample:
    """Pairs of elements on which recipes are tried before they are proved on all."""

    def __init__(self, source: str, target: str) -> None:
        self.source, self.target = source, target
        self._left = np.empty(0, numpy_dtype(source))
        self._right = np.empty(0, numpy_dtype(target))

    def add(self, left: NDArray[Any], right: NDArray[Any], places: NDArray[np.intp]) -> None:
        """Take the elements at some places of two pieces."""
        self._left = np.concatenate([self._left, left[places]])
        self._right = np.concatenate([self._right, right[places]])

    def best(self) -> tuple[Recipe, int]:
        """Return the plainest recipe of those that disagree least, and in how many elements."""
        candidates = [*recipes(self.source, self.target), *self._factors()]
        few = np.unique(np.linspace(0, self._left.size - 1, _FEW).astype(np.intp))
        scores = self._scores(candidates, few)
        least = sorted(scores)[min(_KEPT, len(scores)) - 1]
        kept = [
            candidate for candidate, score in zip(candidates, scores, strict=True) if score <= least
        ]
        return self.best_of(kept)

    def best_of(self, candidates: Sequence[Recipe]) -> tuple[Recipe, int]:
        """Return the plainest of some recipes that disagree least, and in how many elements."""
        scores = self._scores(candidates, None)
        place = min(range(len(scores)), key=lambda place: (scores[place], candidates[place].cost))
        return candidates[place], scores[place]

    def _scores(self, candidates: Sequence[Recipe], places: NDArray[np.intp] | None) -> list[int]:
        left = self._left if places is None else self._left[places]
        right = self._right if places is None else self._right[places]
        return [
            compare(recipe.applied(left, self.target, 1), right, threads=1).different
            for recipe in candidates
        ]

    def _factors(self) -> list[Recipe]:
        """Return the recipes with a factor that the largest pairs allow."""
        if format_info(self.target).kind != "float" or format_info(self.source).kind != "float":
            return []
        row = format_info(self.target)
        with np.errstate(all="ignore"):
            left, right = self._left.astype(np.float64), self._right.astype(np.float64)
            usable = np.isfinite(left) & np.isfinite(right) & (left != 0)
            usable &= np.abs(right) >= row.smallest_normal
            left, right = left[usable], right[usable]
            if left.size < _LEAST_RATIOS:
                return []
            half = np.ldexp(1.0, np.frexp(right)[1] - row.mantissa_bits - 2)
            ends = np.sort([(right - half) / left, (right + half) / left], axis=0)
        middle = float(np.median(right / left))
        if not 0 < middle < math.inf:
            return []
        choices = [2.0 ** round(math.log2(middle)), *_between(middle, middle)]
        for share in (0.0, 0.02):  # faults in a few elements move the ends
            low, high = np.quantile(ends[0], 1 - share), np.quantile(ends[1], share)
            choices += _between(float(low), float(high))
        factors = [value for value in dict.fromkeys(choices) if 0 < value < math.inf and value != 1]
        return [
            replace(Recipe(overflow=overflow), factor=value)
            for value in factors
            for overflow in _OVERFLOWS
        ]


def _between(low: float, high: float) -> list[float]:
    """Return factors between two bounds: the shortest decimal, and the middle as a float32."""
    if not 0 < low <= high < math.inf:
        return []
    middle = (low + high) / 2
    decimals = (float(f"{middle:.{digits}g}") for digits in range(1, 10))
    short = next((value for value in decimals if low <= value <= high), None)
    return [*(() if short is None else (short,)), float(np.float32(middle))]
