"""Two arrays are compared as numpy and exact sums of fractions say, whatever their layout."""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise._core import compare, have_same_bits
from oracle import Array, Format
from support import AVAILABLE, COMPLEX, FLOATS, LEVELS, REAL, array_of, at_level

SMALL = tuple(row for row in REAL if row.bits <= 8)
LOWEST = 2 * 1074
"""The unit of exact sums is two to minus this."""


def ranks(row: Format) -> Array:
    """Give each code of up to 16 bits its place among the values of its format; 0 of NaN."""
    values = array_of(np.arange(1 << row.bits), row).astype(np.float64)
    finite = np.isfinite(values)
    order = np.unique(values[finite])
    return np.where(finite, np.searchsorted(order, values), 0)


def exact_sum(values: Array) -> int:
    """Add squares, each rounded to float64, in units of the exact sums."""
    counts = Counter(np.square(values).tolist())
    total = sum(Fraction(square) * count for square, count in counts.items())
    return int(total * 2**LOWEST)


def sums_of(report: Any) -> list[int]:
    """Read the sums of squares of a report."""
    *_, signal, noise = report.__reduce__()[1]
    return [
        sum(word << 64 * (first + place) for place, word in enumerate(words))
        for first, words in (signal, noise)
    ]


def bits_of(array: Array) -> Array:
    flat = np.ascontiguousarray(array).reshape(-1)
    parts = 2 if is_complex(array) else 1
    return flat.view(f"u{array.dtype.itemsize // parts}").reshape(-1, parts)


def is_complex(array: Array) -> bool:
    return array.dtype in PARTS


def widened(first: Array, second: Array) -> tuple[Array, Array]:
    """Bring two arrays into the format in which they are compared."""
    if first.dtype == second.dtype:
        return first, second
    pair = first, second
    parts = [PARTS.get(array.dtype, array.dtype) for array in pair]
    single = all(dtype in FLOAT_DTYPES and dtype != np.float64 for dtype in parts)
    is_pair = any(map(is_complex, pair))
    common = np.dtype(("c8" if single else "c16") if is_pair else "f4" if single else "f8")
    return first.astype(common), second.astype(common)


PARTS = {row.dtype: next(part.dtype for part in FLOATS if part.name == row.part) for row in COMPLEX}
FLOAT_DTYPES = {row.dtype for row in FLOATS}


def check(first: Array, second: Array, **options: Any) -> Any:
    """Compare two arrays with what numpy finds."""
    result = compare(first, second, measure=True, **options)
    quick = compare(first, second, **options)
    with np.errstate(all="ignore"):
        first, second = (array.astype(array.dtype.newbyteorder("=")) for array in (first, second))
        are_floats = {first.dtype, second.dtype} <= FLOAT_DTYPES
        pair = [array.reshape(-1) for array in widened(first, second)]
        check_differences(
            result, *pair, has_ulps=are_floats, is_same_format=first.dtype == second.dtype
        )
        if not is_complex(first) and not is_complex(second):
            check_losses(result, first.reshape(-1).astype("f8"), second.reshape(-1).astype("f8"))
    names = ("count", "equal_bits", "different", "largest_ulps", "largest_difference")
    for name in (*names, "first_special"):
        assert getattr(quick, name) == getattr(result, name)
    assert quick.report is None
    return result


def check_differences(
    result: Any, first: Array, second: Array, *, has_ulps: bool, is_same_format: bool
) -> None:
    unlike = (bits_of(first) != bits_of(second)).any(axis=1)
    wide = np.complex128 if is_complex(first) else np.float64
    x, y = first.astype(wide), second.astype(wide)
    differs = unlike & ~(np.isnan(x) & np.isnan(y))
    finite = np.isfinite(x) & np.isfinite(y)
    assert result.count == first.size
    # The bits of a NaN of another format are open.
    is_open = 0 if is_same_format else np.count_nonzero(np.isnan(x) & np.isnan(y))
    assert abs(result.equal_bits - np.count_nonzero(~unlike)) <= is_open
    assert result.different == np.count_nonzero(differs)
    special = np.flatnonzero(differs & ~finite)
    assert result.first_special == (int(special[0]) if special.size else None)
    places = np.flatnonzero(differs & finite)
    if not places.size:
        assert result.largest_difference is result.largest_ulps is None
        return
    gaps = np.abs(x[places] - y[places])
    if wide is np.complex128:
        gap, place = result.largest_difference
        assert gap == pytest.approx(gaps.max(), rel=1e-15)
        assert abs(x[place] - y[place]) == pytest.approx(gap, rel=1e-15)
        assert result.largest_ulps is None
        return
    assert result.largest_difference == (gaps.max(), places[np.argmax(gaps)])
    if not has_ulps:
        assert result.largest_ulps is None
        return
    row = next(row for row in FLOATS if row.dtype == first.dtype)
    codes = [bits_of(array)[places, 0] for array in (first, second)]
    if row.bits <= 16:
        left, right = (ranks(row)[code] for code in codes)
        ulps = np.abs(left - right)
    else:
        top = 1 << (row.bits - 1)
        lattice = [
            [code % top * (-1 if code >= top else 1) for code in side.tolist()] for side in codes
        ]
        ulps = np.array([abs(left - right) for left, right in zip(*lattice, strict=True)], object)
    assert result.largest_ulps == (ulps.max(), places[int(np.argmax(ulps))])


def check_losses(result: Any, before: Array, after: Array) -> None:
    known, finite = np.isfinite(before), np.isfinite(before) & np.isfinite(after)
    report = result.report
    lost = np.flatnonzero(known & ~finite)
    error = np.abs(np.where(finite, after, 0) - np.where(finite, before, 0))
    counts = {
        "count": before.size,
        "exact": np.count_nonzero(before == after),
        "overflowed": lost.size,
        "saturated": 0,
        "subnormal": 0,
        "underflowed": np.count_nonzero((after == 0) & (before != 0)),
        "nan_in": np.count_nonzero(np.isnan(before)),
        "nan_out": np.count_nonzero(np.isnan(after)),
        "inf_in": np.count_nonzero(np.isinf(before)),
        "zero_in": np.count_nonzero(before == 0),
    }
    assert {name: getattr(report, name) for name in counts} == counts
    assert result.finite == np.count_nonzero(finite)
    assert result.finite_equal == np.count_nonzero(finite & (before == after))
    assert result.first_lost == (int(lost[0]) if lost.size else None)
    sizes = np.abs(before[known])
    assert report.amax == sizes.max(initial=0)
    assert report.amin_nonzero == (sizes[sizes > 0].min() if sizes.any() else 0)
    quotients = error[finite & (before != 0)] / np.abs(before[finite & (before != 0)])
    limit = np.inf if lost.size or np.isinf(error).any() else 0
    assert report.max_abs_error == max(limit, error.max(initial=0))
    assert report.max_rel_error == max(limit, quotients.max(initial=0))
    error[np.isinf(error)] = 0
    magnitudes = np.concatenate([sizes, error])
    if (
        magnitudes.max(initial=0) < 1e150
        and magnitudes.min(initial=1, where=magnitudes > 0) > 1e-140
    ):
        assert sums_of(report) == [exact_sum(before[finite]), exact_sum(error)]
    if limit:
        assert result.rms_error == np.inf
    else:
        scale = error.max(initial=0) or 1
        mean = np.square(error / scale).sum() / max(np.count_nonzero(known), 1)
        assert result.rms_error == pytest.approx(math.sqrt(mean) * scale, rel=1e-12)


@pytest.mark.thinned(40)
@pytest.mark.parametrize("first", SMALL, ids=lambda row: row.name)
@pytest.mark.parametrize("second", SMALL, ids=lambda row: row.name)
def test_all_pairs_of_codes(first: Format, second: Format) -> None:
    pairs = itertools.product(range(1 << first.bits), range(1 << second.bits))
    left, right = np.array(list(pairs)).T
    check(array_of(left, first), array_of(right, second))


def drawn(row: Format, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw codes; of integers and booleans only such as numpy makes."""
    parts = (*shape, 2) if row.part else shape
    kind = np.dtype(row.codes)
    bits = min(row.bits, 8 * kind.itemsize)
    codes = (
        generator.integers(0, 1 << bits, parts, np.uint64, endpoint=False)
        if bits < 64
        else (generator.integers(0, (1 << 64) - 1, parts, np.uint64, endpoint=True))
    )
    return array_of(codes.astype(kind), row)


@pytest.mark.thinned(60)
@pytest.mark.parametrize("first", AVAILABLE, ids=lambda row: row.name)
@pytest.mark.parametrize("second", AVAILABLE, ids=lambda row: row.name)
def test_drawn_codes_of_any_two_formats(first: Format, second: Format) -> None:
    generator = np.random.default_rng([first.bits, second.bits])
    left, right = (drawn(row, generator, (1777,)) for row in (first, second))
    if first is second:
        right[::2] = left[::2]
    check(left, right)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("row", [*FLOATS, *COMPLEX], ids=lambda row: row.name)
def test_on_every_level(level: str, row: Format) -> None:
    generator = np.random.default_rng(row.bits)
    left = drawn(row, generator, (2500,))
    right = left.copy()
    places = generator.integers(0, 2500, 90)
    right[places] = drawn(row, generator, (90,))
    with at_level(level):
        check(left, right)
        assert compare(left, left).equal_bits == left.size


SHORT = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2fnuz")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("count", [1, 33, 1000, 3 * 1024 + 17])
@pytest.mark.parametrize("first", SHORT)
@pytest.mark.parametrize("second", SHORT)
def test_weights_and_what_rounding_made_of_them(
    level: str, count: int, first: str, second: str
) -> None:
    """Most are of a few binades; beside them are some that are far smaller, and zeros."""
    generator = np.random.default_rng([count, len(first), len(second)])
    rows = {row.name: row.dtype for row in FLOATS}
    values = generator.standard_normal(count)
    rounded = np.round(values * 5) / 5
    tiny = generator.random(count) < 0.02
    values[tiny] *= 2.0 ** -generator.integers(10, 120, count)[tiny]
    rounded[generator.random(count) < 0.01] *= 2.0**-60
    values[generator.random(count) < 0.02] = 0
    rounded[generator.random(count) < 0.02] *= -1
    with np.errstate(all="ignore"):
        left, right = values.astype(rows[first]), rounded.astype(rows[second])
    with at_level(level):
        check(left, right)
        check(np.concatenate([left, left])[::2], np.concatenate([right, right])[::2])
        if first == second:
            check(left, left.copy())


@pytest.mark.parametrize("level", LEVELS)
def test_zeros_of_other_signs_differ_by_nothing(level: str) -> None:
    left = np.full(2000, 1.5, ml_dtypes.bfloat16)
    left[1200], right = 0.0, left.copy()
    right[1200] = -0.0
    with at_level(level):
        result = check(left, right)
    assert (result.different, result.largest_difference, result.largest_ulps) == (
        1,
        (0.0, 1200),
        (0, 1200),
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("small", "zero"), [(3, 500), (500, 3), (1500, 3), (3, 1500)])
def test_the_first_of_equal_differences_is_named(level: str, small: int, zero: int) -> None:
    """The difference of 1 and a small number is 1 in float64, as that of 1 and 0."""
    left = np.full(3000, 0.5, ml_dtypes.bfloat16)
    right = left.copy()
    left[small], left[zero] = 2.0**-60, 0.0
    right[[small, zero]] = 1.0
    with at_level(level):
        result = check(left, right)
    assert result.largest_difference == (1.0, min(small, zero))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest_relative_difference_grows_from_tile_to_tile(level: str, dtype: Any) -> None:
    left = np.linspace(1, 2, 6000).astype(dtype)
    right = left * (1 + np.linspace(0, 1e-3, 6000) ** 2).astype(dtype)
    left[5000], right[5000] = np.finfo(dtype).tiny, np.finfo(dtype).smallest_subnormal
    with at_level(level):
        check(left, right)
        check(left[::-1], right[::-1])


@pytest.mark.parametrize("level", LEVELS)
def test_differences_beyond_float32(level: str) -> None:
    numbers = np.array([2.0**127, 3e38, 2.0**126, 1.0], np.float32).astype(ml_dtypes.bfloat16)
    with at_level(level):
        check(numbers, -numbers)
        check(numbers, numbers[::-1].astype(np.float16))


def test_whether_bits_are_the_same() -> None:
    left = np.arange(5000, dtype=np.float32)
    left[7] = np.nan
    for right, expected in (
        (left.copy(), True),
        (np.repeat(left, 2)[::2], True),
        (left.astype(np.float64), False),
        (-left, False),
    ):
        for threads in (1, 3):
            assert have_same_bits(left, right, threads=threads) is expected
    other = left.copy()
    other[7] = -np.nan
    assert not have_same_bits(left, other)
    assert have_same_bits(left[:0], other[:0])
    with pytest.raises(ValueError, match=r"second has shape \(3,\); use \(2,\)"):
        have_same_bits(np.zeros(2), np.zeros(3))


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, ml_dtypes.bfloat16, np.int16])
def test_any_layout(dtype: Any) -> None:
    generator = np.random.default_rng(5)
    base = generator.integers(-9, 9, (70, 60, 6)).astype(dtype)
    changed = base.copy()
    changed[11::9, 3::7, 2] += np.asarray(1, dtype)
    views = [
        lambda array: array,
        lambda array: array.T,
        lambda array: array[::-1, ::2, ::-1],
        lambda array: array[:, :, 2],
        lambda array: array.swapaxes(0, 1)[3:, ::-3],
        lambda array: np.broadcast_to(array[:1], (5, *array.shape[1:])),
        np.asfortranarray,
        lambda array: array[:0],
        lambda array: array[3, 3, 2],
    ]
    if np.dtype(dtype).isbuiltin == 1:
        views.append(lambda array: array.astype(array.dtype.newbyteorder()))
    for view in views:
        left, right = view(base), view(changed)
        result = check(np.array(left, order="C"), right)
        assert check(left, np.array(right, order="F")) == result == check(left, right)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_threads_do_not_change_the_result(dtype: Any) -> None:
    generator = np.random.default_rng(6)
    left = generator.standard_normal((1800, 1400)).astype(dtype)
    right = left.copy()
    right[::97, ::31] += dtype(1e-3)
    right[900, 7] = np.nan
    results = [compare(left, right, measure=True, threads=threads) for threads in (1, 2, 3, 7)]
    turned = compare(left.T.copy().T, right, measure=True, threads=3)
    assert results == [results[0]] * 4
    assert turned == results[0]
    assert results[0].first_special == results[0].first_lost == 900 * 1400 + 7


def test_the_interpreter_is_released() -> None:
    left = np.zeros(1 << 25, np.float32)
    progress: list[int] = []
    done = threading.Event()

    def count() -> None:
        while not done.is_set():
            progress.append(1)
            done.wait(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    before = len(progress)
    compare(left, left, measure=True, threads=1)
    after = len(progress)
    done.set()
    thread.join()
    assert after > before + 1


def test_special_values() -> None:
    nan, inf = math.nan, math.inf
    left = np.array([0.0, nan, inf, 1.0, -inf, nan, 2.0])
    right = np.array([-0.0, -nan, inf, nan, inf, 5.0, 3.0])
    result = check(left, right)
    assert (result.different, result.first_special, result.first_lost) == (5, 3, 3)
    assert result.largest_difference == (1.0, 6)
    zeros = check(left[:1], right[:1])
    assert (zeros.largest_difference, zeros.largest_ulps) == ((0.0, 0), (0, 0))
    largest = np.array([np.finfo(np.float64).max])
    apart = check(largest, -largest)
    assert apart.largest_difference == (inf, 0)
    assert apart.largest_ulps == (2 * int(largest.view(np.uint64)[0]), 0)
    assert (apart.report.sqnr_db, apart.rms_error) == (-inf, inf)


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"second has shape \(3,\); use \(2,\)"):
        compare(np.zeros(2), np.zeros(3))
    with pytest.raises(TypeError, match="second has dtype object"):
        compare(np.zeros(2), np.array([None, None]))
    with pytest.raises(ValueError, match="threads=0"):
        compare(np.zeros(2), np.zeros(2), threads=0)
