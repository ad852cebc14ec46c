"""`compare`: where two arrays differ, and by how much."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from castwise import _core
from castwise.arrays.adapter_registry import array_adapter, elements_of
from castwise.arrays.measures import Measures
from castwise.rendering import Rendered
from castwise.rendering.sheet import Sheet, Table
from castwise.text.brief import brief_fields, short
from castwise.text.plain import plain_dict


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
    beside floats.

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
    comparison = _core.compare(*hosts, measure=True, threads=threads)
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
