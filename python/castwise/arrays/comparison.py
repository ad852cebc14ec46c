"""`compare`: where two arrays differ, and by how much; differences of pieces add up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from castwise._core import CastReport, cast, finfo
from castwise._core import Comparison as CoreComparison
from castwise._core import compare as compare_arrays
from castwise.arrays.adapter_registry import array_adapter, elements_of
from castwise.rendering import Rendered
from castwise.rendering.sheet import Sheet, Table
from castwise.text.brief import brief_fields, plain_dict, short

Piece = tuple[NDArray[Any], NDArray[Any], int]  # elements of two tensors, and where they begin

Elements = Any
"""Elements by their place: an array, or a mapping of some."""

_ULP_BITS = 16


class LargestGap:
    """The largest absolute difference of two streams of pieces."""

    def __init__(self) -> None:
        self.size = 0.0  # infinite if only one of two is infinite or NaN
        self.place = 0  # where it is first
        self.values: tuple[float, float] | None = None  # there; None if nothing differs

    def add(
        self, comparison: CoreComparison, source: Elements, result: Elements, start: int
    ) -> None:
        """Take the largest difference of two pieces that differ, which begin at `start`."""
        size, place = _largest_gap(comparison)
        if self.values is None or (size, -start - place) > (self.size, -self.place):
            self.size, self.place = size, start + place
            self.values = _plain_value(source[place]), _plain_value(result[place])


class Measures:
    """The differences of a pair of arrays, added up over their pieces, each with one axis."""

    def __init__(
        self,
        source: str,
        target: str,
        tolerances: tuple[float, float] | None,
        threads: int | None,
        *,
        # Whether differences are counted alone, and ulps those of a format of 16 bits or more that
        # holds both.
        is_counted: bool = False,
    ) -> None:
        self._source, self._target = source, target
        self._tolerances = tolerances
        self._threads = threads
        self.is_counted = is_counted
        kinds, bits = _kinds(source, target)
        self._complex = "complex" in kinds
        self.are_floats = kinds == ["float", "float"]
        # Elements, those with other values (NaN is like any other NaN), those beyond tolerances.
        self.count = self.different = self.beyond = 0
        self.gap = LargestGap()
        self.max_rel = 0.0  # of |a - b| / |a|, of numbers that are finite and not 0 in A
        # Of A, rounded to the format of B, from B, in units in the last place of that.
        self.max_ulp: int | None = 0 if kinds[1] == "float" and not self._complex else None
        if is_counted and (kinds[0] != "float" or bits < _ULP_BITS):
            self.max_ulp = None
        self.ulp_place = 0
        self.rel_place = 0
        self._pieces_by_kind: dict[int, Piece] = {}
        self._most_expected = [0.0, 0.0]
        self.rel_values: tuple[float, float] | None = None
        self._report: CastReport | None = None

    @property
    def sqnr_db(self) -> float | None:
        """The ratio of signal and noise, of the numbers that are finite in both."""
        return None if self._report is None else self._report.sqnr_db

    @property
    def amax(self) -> float:
        """The largest finite magnitude of A, of elements that were measured."""
        return 0.0 if self._report is None else self._report.amax

    @property
    def are_zeros(self) -> bool:
        """True if all elements of A are zero; they were measured."""
        return self._report is not None and self._report.zero_in == self._report.count

    def compare_pieces(
        self, source: NDArray[Any], result: NDArray[Any], *, threads: int | None = None
    ) -> CoreComparison:
        is_measured = not self.is_counted
        return compare_arrays(source, result, measure=is_measured, threads=threads or self._threads)

    def add_report(self, report: CastReport) -> None:
        self._report = report if self._report is None else self._report + report

    def add_equal(self, count: int) -> None:
        self.count += count

    def add_signal(self, source: NDArray[Any]) -> None:
        """Add equal elements, of which the ratio of signal and noise must know."""
        self.add_report(cast(source, source.dtype, report=True, threads=self._threads)[1])

    def add_cast(
        self, source: NDArray[Any], result: NDArray[Any], report: CastReport, most_ulps: int | None
    ) -> None:
        """Add a piece whose cast is the other one, and its report."""
        # The cast is at most `most_ulps` from the nearest, if that is known.
        has_losses = report.saturated or report.overflowed or report.nan_in != report.nan_out
        if has_losses or (self._tolerances is not None and report.max_abs_error):
            self.add(source, result, self.compare_pieces(source, result))
            return
        start = self.count
        self.count += source.size
        self.different += report.count - report.exact
        self.add_report(report)
        if most_ulps is None or (self.max_ulp or 0) < most_ulps:
            self._add_ulps(source, result, start)
        for kind, most in enumerate((report.max_abs_error, report.max_rel_error)):
            if most > max(self._most_expected[kind], (self.gap.size, self.max_rel)[kind]):
                self._most_expected[kind] = most
                self._pieces_by_kind[kind] = source, result, start

    def add(self, source: NDArray[Any], result: Elements, comparison: CoreComparison) -> None:
        """Add two pieces that were compared; of the second the elements that differ most."""
        start = self.count
        self.count += source.size
        if comparison.report is not None:
            self.add_report(comparison.report)
        if not comparison.different:
            return
        self.different += comparison.different
        self._take_largest(comparison, source, result, start)
        if self._source == self._target or self.is_counted:
            self._take_ulps(comparison, start)
        elif self.max_ulp is not None:
            self._add_ulps(source, result, start)
        if self._tolerances is not None:
            self._add_beyond(source, result)

    def _take_largest(
        self, comparison: CoreComparison, source: Elements, result: Elements, start: int
    ) -> None:
        self.gap.add(comparison, source, result, start)
        most, place = comparison.largest_relative or (0.0, 0)
        if most and (most, -start - place) > (self.max_rel, -self.rel_place):
            self.max_rel, self.rel_place = most, start + place
            self.rel_values = _plain_value(source[place]), _plain_value(result[place])

    def _add_ulps(self, source: NDArray[Any], result: NDArray[Any], start: int) -> None:
        reference = cast(source, self._target, overflow="saturate", threads=self._threads)
        self._take_ulps(compare_arrays(reference, result, threads=self._threads), start)

    def _take_ulps(self, comparison: CoreComparison, start: int) -> None:
        ulps, place = comparison.largest_ulps or (0, 0)
        if self.max_ulp is not None and ulps > self.max_ulp:
            self.max_ulp, self.ulp_place = ulps, start + place

    def locate(self) -> None:
        """Look for the places of the largest differences where they are not known."""
        pieces = {
            start: (source, result) for source, result, start in self._pieces_by_kind.values()
        }
        self._pieces_by_kind = {}
        for start, (source, result) in sorted(pieces.items()):
            self._take_largest(self.compare_pieces(source, result), source, result, start)

    def _add_beyond(self, source: NDArray[Any], result: NDArray[Any]) -> None:
        rtol, atol = self._tolerances or (0.0, 0.0)
        dtype = np.complex128 if self._complex else np.float64
        with np.errstate(all="ignore"):
            wide_left, wide_right = source.astype(dtype), result.astype(dtype)
            near = np.isclose(wide_right, wide_left, rtol=rtol, atol=atol, equal_nan=True)
        self.beyond += int(near.size - np.count_nonzero(near))


def _largest_gap(comparison: CoreComparison) -> tuple[float, int]:
    """Return the largest difference and where it is first; infinite beside infinity or NaN."""
    gap, place = comparison.largest_difference or (0.0, 0)
    special = comparison.first_special
    if special is None or (math.isinf(gap) and place < special):
        return gap, place
    return math.inf, special


@cache
def _kinds(source: str, target: str) -> tuple[Sequence[str], int]:
    """Return the kinds of two formats, and the bits of the wider one."""
    rows = finfo(source), finfo(target)
    return [row.kind for row in rows], max(row.bits for row in rows)


def _plain_value(number: Any) -> float:  # noqa: ANN401  (of any format)
    """Return an element as a float; of a complex number the real part."""
    return complex(number).real


@dataclass(frozen=True, slots=True)
class Comparison(Rendered):
    """Where two arrays x and y differ, and by how much. Prints as a table.

    Attributes
    ----------
    shape : tuple of int
        The shape of both.
    dtypes : tuple of str
        The two formats, as `castwise.formats` names them.
    count : int
        How many elements there are.
    equal_bits : int
        How many have the same bits; if the formats differ, in a format that holds both.
    different : int
        How many have other bits, NaN beside NaN left out. -0 is not 0.
    max_ulp : int or None
        The largest distance of x, rounded to the format of y, from y, in units in the last place
        of that format, of numbers that are finite in both; None if y holds no real floats, or x is
        complex.
    max_abs : float
        The largest ``|x - y|``; inf if only one of two is infinite or NaN.
    max_rel : float
        The largest ``|x - y| / |x|`` of numbers that are finite in both, and not zero in x; inf
        beyond float64.
    max_ulp_index, max_abs_index, max_rel_index : tuple of int or None
        Where these are, the first in C order; None if nothing differs so.
    sqnr_db : float
        The ratio of the signal x and the noise x - y in decibels, as in `CastReport`: inf without
        noise, -inf if a finite number of x is infinite or NaN in y, NaN without a signal. Where
        an array is float32 beside floats that it holds, squares are rounded to float32, and sums
        are within 6e-8.

    """

    shape: tuple[int, ...]
    dtypes: tuple[str, str]
    count: int
    equal_bits: int
    different: int
    max_ulp: int | None
    max_ulp_index: tuple[int, ...] | None
    max_abs: float
    max_abs_index: tuple[int, ...] | None
    max_rel: float
    max_rel_index: tuple[int, ...] | None
    sqnr_db: float

    __repr__ = brief_fields

    @property
    def same(self) -> bool:
        """True if no element differs; formats may."""
        return not self.different

    def __sheet__(self) -> Sheet:
        """Return a table of the numbers."""
        return [Table.of((), [(row.name, short(getattr(self, row.name))) for row in fields(self)])]

    to_dict = plain_dict


def compare(x: ArrayLike, y: ArrayLike, *, threads: int | None = None) -> Comparison:
    """Compare two arrays: how many elements differ, by how much at most, and where.

    Values are compared exactly, whatever the two dtypes are: integers of 64 bits are not rounded
    beside floats. A difference beyond the largest float64 is an infinite error.

    Parameters
    ----------
    x, y : array_like
        Of one shape, with any strides, byte orders and dtypes that castwise casts; also of a
        library with an adapter (torch, jax, ...). Errors are relative to x.
    threads : int, optional
        At most this many threads; default get_num_threads(). The result does not depend on them.

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError
        The shapes differ.
    TypeError
        An argument is masked, or nothing that castwise makes numbers of.

    Examples
    --------
    >>> x = np.array([1.0, 2.0, 3.0], np.float32)
    >>> comparison = castwise.compare(x, castwise.cast(x * 1.001, "float16"))
    >>> comparison.different, comparison.max_ulp, comparison.max_ulp_index
    (3, 2, (2,))

    """
    hosts = _on_host(x), _on_host(y)
    comparison = compare_arrays(*hosts, measure=True, threads=threads)
    first, second = map(np.asarray, hosts)
    dtypes = first.dtype.name, second.dtype.name
    measures = Measures(*dtypes, None, threads)
    if comparison.different:
        measures.add(first.reshape(-1), second.reshape(-1), comparison)
        measures.locate()
    assert comparison.report is not None, "measured"  # noqa: S101

    def index(place: int, exists: object) -> tuple[int, ...] | None:
        if not exists:
            return None
        return tuple(int(axis) for axis in np.unravel_index(place, first.shape))

    return Comparison(
        first.shape,
        dtypes,
        count=comparison.count,
        equal_bits=comparison.equal_bits,
        different=comparison.different,
        max_ulp=measures.max_ulp,
        max_ulp_index=index(measures.ulp_place, measures.max_ulp),
        max_abs=measures.gap.size,
        max_abs_index=index(measures.gap.place, measures.gap.values),
        max_rel=measures.max_rel,
        max_rel_index=index(measures.rel_place, measures.rel_values),
        sqnr_db=comparison.report.sqnr_db,
    )


def _on_host(x: object) -> Any:  # noqa: ANN401  (what numpy reads)
    adapter = array_adapter(x)
    return x if adapter is None else elements_of(adapter, x)
