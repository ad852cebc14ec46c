"""Measure how far one array is from another, added up over their pieces."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import CastReport, Comparison, cast, compare, finfo

Piece = tuple[NDArray[Any], NDArray[Any], int]
"""Elements of two tensors, and where they begin."""

_PIECE = 1 << 18
"""Elements that numpy widens at a time."""

_FEW = 1 << 12
"""Elements of which numpy finds the largest relative difference sooner than halving does."""


class LargestGap:
    """The largest absolute difference of two streams of pieces."""

    def __init__(self) -> None:
        self.size = 0.0  # infinite if only one of two is infinite or NaN
        self.place = 0  # where it is first
        self.values: tuple[float, float] | None = None  # there; None if nothing differs
        self._piece: Piece | None = None

    def add(
        self, comparison: Comparison, left: NDArray[Any], right: NDArray[Any], start: int
    ) -> None:
        """Take the largest difference of two pieces that differ, which begin at `start`."""
        size, place = _largest_gap(comparison)
        if size > self.size or (self.values is None and self._piece is None):
            self.size, self.place, self._piece = size, start + place, None
            self.values = _plain_value(left[place]), _plain_value(right[place])

    def expect(self, size: float, piece: Piece) -> None:
        """Take a piece of which the largest difference is known, but not where it is."""
        if size > self.size:
            self.size, self._piece = size, piece

    def locate(self) -> None:
        """Look for the place of the largest difference where it is not known."""
        if self._piece is not None:
            left, right, start = self._piece
            self._piece, self.size, self.values = None, 0.0, None
            self.add(compare(left, right), left, right, start)


class Measures:
    """The differences of a pair of arrays, added up over their pieces, each with one axis."""

    def __init__(
        self, source: str, target: str, tolerances: tuple[float, float] | None, threads: int | None
    ) -> None:
        self._source, self._target = source, target
        self._tolerances = tolerances
        self._threads = threads
        kinds = [finfo(name).kind for name in (source, target)]
        self._complex = "complex" in kinds
        # Elements, those with other values (NaN is like any other NaN), those beyond tolerances.
        self.count = self.different = self.beyond = 0
        self.gap = LargestGap()
        self.max_rel = 0.0  # of |a - b| / |a|, of numbers that are finite and not 0 in A
        # Of A, rounded to the format of B, from B, in units in the last place of that.
        self.max_ulp: int | None = 0 if kinds[1] == "float" and not self._complex else None
        self.ulp_place = 0
        self.rel_place = 0
        self._rel_piece: Piece | None = None
        self.rel_values: tuple[float, float] | None = None
        self._report: CastReport | None = None

    @property
    def sqnr_db(self) -> float | None:
        """The ratio of signal and noise, of the numbers that are finite in both."""
        return None if self._report is None else self._report.sqnr_db

    def compared(
        self, left: NDArray[Any], right: NDArray[Any], *, threads: int | None = None
    ) -> Comparison:
        """Compare two pieces, for `add`."""
        return compare(left, right, measure=True, threads=threads or self._threads)

    def add_report(self, report: CastReport) -> None:
        """Add what the cast lost that makes one of the other."""
        self._report = report if self._report is None else self._report + report

    def add_equal(self, count: int) -> None:
        """Count elements that are the same."""
        self.count += count

    def add_signal(self, left: NDArray[Any]) -> None:
        """Add equal elements, of which the ratio of signal and noise must know."""
        self.add_report(cast(left, left.dtype, report=True, threads=self._threads)[1])

    def add_cast(
        self, left: NDArray[Any], right: NDArray[Any], report: CastReport, most_ulps: int | None
    ) -> None:
        """Add a piece whose cast is the other one, and its report.

        It is at most `most_ulps` from the nearest, if that is known.
        """
        has_losses = report.saturated or report.overflowed or report.nan_in != report.nan_out
        if has_losses or (self._tolerances is not None and report.max_abs_error):
            self.add(left, right, self.compared(left, right))
            return
        start = self.count
        self.count += left.size
        self.different += report.count - report.exact
        self.add_report(report)
        if most_ulps is None or (self.max_ulp or 0) < most_ulps:
            self._add_ulps(left, right, start)
        self.gap.expect(report.max_abs_error, (left, right, start))
        self._expect_relative(report.max_rel_error, (left, right, start))

    def add(self, left: NDArray[Any], right: NDArray[Any], comparison: Comparison) -> None:
        """Add two pieces that were `compared`."""
        start = self.count
        self.count += left.size
        if comparison.report is not None:
            self.add_report(comparison.report)
        if not comparison.different:
            return
        self.different += comparison.different
        self.gap.add(comparison, left, right, start)
        if self._source == self._target:
            self._take_ulps(comparison, start)
        elif self.max_ulp is not None:
            self._add_ulps(left, right, start)
        if comparison.report is not None:
            self._expect_relative(comparison.report.max_rel_error, (left, right, start))
        if self._tolerances is not None:
            self._add_beyond(left, right)

    def _add_ulps(self, left: NDArray[Any], right: NDArray[Any], start: int) -> None:
        rounded = cast(left, self._target, overflow="saturate", threads=self._threads)
        self._take_ulps(compare(rounded, right, threads=self._threads), start)

    def _take_ulps(self, comparison: Comparison, start: int) -> None:
        ulps, place = comparison.largest_ulps or (0, 0)
        if self.max_ulp is not None and ulps > self.max_ulp:
            self.max_ulp, self.ulp_place = ulps, start + place

    def _expect_relative(self, largest: float, piece: Piece) -> None:
        """Take a piece whose largest relative difference is known, but not where it is."""
        if math.isinf(largest) or self._complex:  # of a number that is finite in A only, or a part
            self._scan(*piece)
        elif largest > self.max_rel:
            self.max_rel, self._rel_piece = largest, piece

    def locate(self) -> None:
        """Look for the places of the largest differences where they are not known."""
        self.gap.locate()
        if self._rel_piece is not None:
            piece, self._rel_piece = self._rel_piece, None
            if (element := self._narrow(*piece)) is not None:
                left, right, self.rel_place = element
                self.rel_values = _plain_value(left[0]), _plain_value(right[0])
            else:
                self.max_rel = 0.0
                self._scan(*piece)

    def _scan(self, left: NDArray[Any], right: NDArray[Any], start: int) -> None:
        """Take the largest relative difference of a piece of any size, as numpy finds it."""
        for begin in range(0, left.size, _PIECE):
            cut = slice(begin, begin + _PIECE)
            self._take_relative(left[cut], right[cut], start + begin)

    def _is_largest(self, left: NDArray[Any], right: NDArray[Any]) -> bool:
        """Return True if the largest relative difference of some elements is that of all."""
        report = self.compared(left, right).report
        return report is not None and report.max_rel_error == self.max_rel

    def _take_relative(self, left: NDArray[Any], right: NDArray[Any], start: int) -> None:
        """Take the largest relative difference of numbers that are finite in both pieces."""
        shares = self._relative(left, right)
        place = int(np.argmax(shares))
        if shares[place] > self.max_rel:
            self.max_rel, self.rel_place = float(shares[place]), start + place
            self.rel_values = _plain_value(left[place]), _plain_value(right[place])
            self._rel_piece = None

    def _relative(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
        """Return the relative differences of numbers that are finite in both pieces; else 0."""
        dtype = np.complex128 if self._complex else np.float64
        with np.errstate(all="ignore"):
            ahead, behind = left.astype(dtype), right.astype(dtype)
            shares: NDArray[np.float64] = np.abs(ahead - behind) / np.abs(ahead)
            if math.isfinite(shares[shares.argmax()]):  # argmax finds infinity and NaN
                return shares  # no number is infinite, NaN, or 0 in A
            far = ~np.isfinite(shares)
            # Finite numbers may differ by more than float64 holds; their quarters do not.
            ahead_of_far, behind_of_far = ahead[far] / 4, behind[far] / 4
            shares[far] = np.abs(ahead_of_far - behind_of_far) / np.abs(ahead_of_far)
        shares[~(np.isfinite(ahead) & np.isfinite(behind) & (ahead != 0))] = 0
        return shares

    def _narrow(self, left: NDArray[Any], right: NDArray[Any], start: int) -> Piece | None:
        """Return the first element of which the largest relative difference is that of all.

        None if the difference of no single element is.
        """
        if left.size <= _FEW:
            shares = self._relative(left, right)
            place = int(shares.argmax())
            one = slice(place, place + 1)
            if shares[place] == self.max_rel or self._is_largest(left[one], right[one]):
                return left[one], right[one], start + place
        while left.size > 1:
            middle = left.size // 2
            if self._is_largest(left[:middle], right[:middle]):
                left, right = left[:middle], right[:middle]
            else:
                left, right, start = left[middle:], right[middle:], start + middle
        return (left, right, start) if self._is_largest(left, right) else None

    def _add_beyond(self, left: NDArray[Any], right: NDArray[Any]) -> None:
        rtol, atol = self._tolerances or (0.0, 0.0)
        dtype = np.complex128 if self._complex else np.float64
        with np.errstate(all="ignore"):
            ahead, behind = left.astype(dtype), right.astype(dtype)
            near = np.isclose(behind, ahead, rtol=rtol, atol=atol, equal_nan=True)
        self.beyond += int(near.size - np.count_nonzero(near))


def _largest_gap(comparison: Comparison) -> tuple[float, int]:
    """Return the largest difference and where it is first; infinite beside infinity or NaN."""
    gap, place = comparison.largest_difference or (0.0, 0)
    special = comparison.first_special
    if special is None or (math.isinf(gap) and place < special):
        return gap, place
    return math.inf, special


def _plain_value(number: Any) -> float:  # noqa: ANN401  (of any format)
    """Return an element as a float; of a complex number the real part."""
    return complex(number).real


def plain_number(value: float | None) -> float | str | None:
    """Return a number for JSON; text if it is not finite."""
    return value if value is None or math.isfinite(value) else str(value)
