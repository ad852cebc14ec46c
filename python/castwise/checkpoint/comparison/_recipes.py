"""Recipes that may have made one array of another: casts, and what stands before and after them."""

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import FormatInfo, compare, finfo, formats
from castwise._options import Nan, Overflow, Rounding
from castwise.arrays.recipe import NEAREST, Recipe, loses
from castwise.checkpoint._tensors import format_info, numpy_dtype

# The usual one first: of recipes of the same cost the first is taken.
_ROUNDINGS: tuple[Rounding, ...] = (
    NEAREST,
    "towards-zero",
    "nearest-away",
    "towards-positive",
    "towards-negative",
)
# Those that leave a result: a cast that raises leaves nothing to explain.
_OVERFLOWS: tuple[Overflow, ...] = ("ieee", "saturate")
_NANS: tuple[Nan, ...] = ("keep", "zero")
# Frameworks compute in formats of 16 and 32 bits, so a cast may have gone through one.
_HALF_BITS, _SINGLE_BITS = 16, 32
# Elements on which all recipes are tried; the better ones are tried on the whole sample.
_FEW = 1024
# How many of the better ones are, and those that are as good as the last of them.
_KEPT = 24
# Any factor explains one pair of elements.
_LEAST_RATIOS = 2


@cache
def recipes(source: str, target: str) -> tuple[Recipe, ...]:
    """List the recipes that may make one format of another, the plainest first."""
    original, copy = format_info(source), format_info(target)
    if original.kind != "float" or copy.kind not in {"float", "int", "uint"}:
        return (Recipe(),)
    steps = [None, *(name for name in _steps(original, copy) if name not in (source, target))]
    flushes = (None, "source", "result", "both") if copy.kind == "float" else (None, "source")
    choices: dict[Recipe, None] = {}
    has_zero = copy.kind != "float" or copy.specials != "exponent-only"
    nans = _NANS if has_zero else _NANS[:1]
    for step, rounding, overflow, nan, flush in product(
        steps, _ROUNDINGS, _OVERFLOWS, nans, flushes
    ):
        if nan != "keep" and flush is not None:
            continue
        if step is None:
            if source == target and flush is None and nan == "keep":
                rounding, overflow = NEAREST, "ieee"  # noqa: PLW2901
            choices[Recipe(rounding, overflow, nan, flushed=flush)] = None
            continue
        if flush not in (None, "result"):
            continue
        for step_rounding, step_overflow in product({rounding, NEAREST}, _OVERFLOWS):
            recipe = Recipe(
                rounding, overflow, nan, step, step_rounding, step_overflow, flushed=flush
            )
            if source != target or (rounding, overflow) == (step_rounding, step_overflow):
                choices[recipe] = None
    return tuple(sorted(choices, key=lambda recipe: recipe.cost))


def _steps(original: FormatInfo, copy: FormatInfo) -> Iterator[str]:
    """List the formats that may stand between two, the widest first."""
    # Between others only those of 16 and 32 bits, which frameworks compute in.
    rows = [row for row in map(finfo, formats()) if row.kind == "float" and row.dtype is not None]
    for row in sorted(rows, key=lambda row: -row.bits):
        is_step = _HALF_BITS <= row.bits <= _SINGLE_BITS
        is_narrow = row.bits < _HALF_BITS and row.specials != "exponent-only"
        if (is_step or (is_narrow and original.name == copy.name)) and loses(
            original.name, row.name
        ):
            yield row.name


class Sample:
    """Pairs of elements on which recipes are tried before they are proved on all."""

    def __init__(self, source: str, target: str) -> None:
        self.source, self.target = source, target
        self._original = np.empty(0, numpy_dtype(source))
        self._copy = np.empty(0, numpy_dtype(target))

    @property
    def size(self) -> int:
        return self._original.size

    def add(self, original: NDArray[Any], copy: NDArray[Any], places: NDArray[np.intp]) -> None:
        """Take the elements at some places of two pieces."""
        self._original = np.concatenate([self._original, original[places]])
        self._copy = np.concatenate([self._copy, copy[places]])

    def best(self) -> tuple[Recipe, int]:
        """Return the plainest recipe of those that disagree least, and in how many elements."""
        candidates = [*recipes(self.source, self.target), *self._factors()]
        few = np.unique(np.linspace(0, self._original.size - 1, _FEW).astype(np.intp))
        scores = self._scores(candidates, few)
        least = sorted(scores)[min(_KEPT, len(scores)) - 1]
        finalists = [
            candidate for candidate, score in zip(candidates, scores, strict=True) if score <= least
        ]
        return self.best_of(finalists)

    def best_of(self, candidates: Sequence[Recipe]) -> tuple[Recipe, int]:
        """Return the plainest of some recipes that disagree least, and in how many elements."""
        scores = self._scores(candidates, None)
        place = min(range(len(scores)), key=lambda place: (scores[place], candidates[place].cost))
        return candidates[place], scores[place]

    def _scores(self, candidates: Sequence[Recipe], places: NDArray[np.intp] | None) -> list[int]:
        original = self._original if places is None else self._original[places]
        copy = self._copy if places is None else self._copy[places]
        return [
            compare(recipe.applied(original, self.target, 1), copy, threads=1).different
            for recipe in candidates
        ]

    def _factors(self) -> list[Recipe]:
        """Return the recipes with a factor that the largest pairs allow."""
        if format_info(self.target).kind != "float" or format_info(self.source).kind != "float":
            return []
        row = format_info(self.target)
        with np.errstate(all="ignore"):
            original, copy = self._original.astype(np.float64), self._copy.astype(np.float64)
            usable = np.isfinite(original) & np.isfinite(copy) & (original != 0)
            usable &= np.abs(copy) >= row.smallest_normal
            original, copy = original[usable], copy[usable]
            if original.size < _LEAST_RATIOS:
                return []
            half = np.ldexp(1.0, np.frexp(copy)[1] - row.mantissa_bits - 2)
            ends = np.sort([(copy - half) / original, (copy + half) / original], axis=0)
        middle = float(np.median(copy / original))
        if not 0 < middle < math.inf:
            return []
        choices = [2.0 ** round(math.log2(middle)), *_between(middle, middle)]
        for share in (0.0, 0.02):  # faults in a few elements move the ends
            low, high = np.quantile(ends[0], 1 - share), np.quantile(ends[1], share)
            choices += _between(float(low), float(high))
        factors = [value for value in dict.fromkeys(choices) if 0 < value < math.inf and value != 1]
        return [
            Recipe(overflow=overflow)._replace(factor=value)
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
