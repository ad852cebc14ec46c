"""Two arrays are compared as numpy and exact sums of fractions say, whatever their layout."""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections import Counter
from fractions import Fraction
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest
from castwise._core import compare, compare_stacks, have_same_bits, report_losses
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


def rest(array: Array) -> Array:
    """What float64 does not hold of integers of 64 bits."""
    if array.dtype.kind not in "iu":
        return np.zeros(array.size)
    return np.array([float(value - int(float(value))) for value in array.reshape(-1).tolist()])


def rounds_squares(first: Array, second: Array) -> bool:
    """Tell whether squares are rounded to float32: one array is float32, which holds both."""
    pair = {first.dtype, second.dtype}
    return np.dtype("f4") in pair <= SINGLES


PARTS = {row.dtype: next(part.dtype for part in FLOATS if part.name == row.part) for row in COMPLEX}
FLOAT_DTYPES = {row.dtype for row in FLOATS}
SINGLES = {row.dtype for row in FLOATS if row.bits in {8, 16, 32} and row.signed}


def check(first: Array, second: Array, **options: Any) -> Any:
    """Compare two arrays with what numpy finds."""
    result = compare(first, second, measure=True, **options)
    quick = compare(first, second, **options)
    with np.errstate(all="ignore"):
        first, second = (array.astype(array.dtype.newbyteorder("=")) for array in (first, second))
        are_floats = {first.dtype, second.dtype} <= FLOAT_DTYPES
        pair = [array.reshape(-1) for array in widened(first, second)]
        rests = rest(second) - rest(first)
        check_differences(
            result, *pair, rests, has_ulps=are_floats, is_same_format=first.dtype == second.dtype
        )
        if not is_complex(first) and not is_complex(second):
            doubles = (array.reshape(-1).astype("f8") for array in (first, second))
            bound = Fraction(rounds_squares(first, second), 2**24)
            check_losses(result, *doubles, rests, bound)
    names = ("count", "equal_bits", "different", "largest_ulps", "largest_difference")
    for name in (*names, "first_special"):
        assert getattr(quick, name) == getattr(result, name)
    assert quick.report is None
    return result


def check_differences(
    result: Any,
    first: Array,
    second: Array,
    rests: Array,
    *,
    has_ulps: bool,
    is_same_format: bool,
) -> None:
    unlike = (bits_of(first) != bits_of(second)).any(axis=1) | (rests != 0)
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
    gaps = np.abs(y[places] - x[places] + rests[places])
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


def check_losses(result: Any, before: Array, after: Array, rests: Array, bound: Fraction) -> None:
    known, finite = np.isfinite(before), np.isfinite(before) & np.isfinite(after)
    report = result.report
    lost = np.flatnonzero(known & ~finite)
    error = np.abs(np.where(finite, after, 0) - np.where(finite, before, 0) + rests * finite)
    equal = (before == after) & (rests == 0)
    counts = {
        "count": before.size,
        "exact": np.count_nonzero(equal),
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
    assert result.finite_equal == np.count_nonzero(finite & equal)
    assert result.first_lost == (int(lost[0]) if lost.size else None)
    sizes = np.abs(before[known])
    assert report.amax == sizes.max(initial=0)
    assert report.amin_nonzero == (sizes[sizes > 0].min() if sizes.any() else 0)
    quotients = error[finite & (before != 0)] / np.abs(before[finite & (before != 0)])
    limit = np.inf if lost.size or np.isinf(error).any() else 0
    assert report.max_abs_error == max(limit, error.max(initial=0))
    assert report.max_rel_error == max(limit, quotients.max(initial=0))
    relative = np.zeros(before.size)
    measured = np.flatnonzero(finite & (before != 0))
    relative[measured] = error[measured] / np.abs(before[measured])
    far = measured[np.isinf(error[measured])]
    relative[far] = np.abs((after[far] / 4 - before[far] / 4) / (before[far] / 4))
    most = relative.max(initial=0)
    assert result.largest_relative == ((most, int(relative.argmax())) if most else None)
    error[np.isinf(error)] = 0
    magnitudes = np.concatenate([sizes, error])
    if (
        magnitudes.max(initial=0) < 1e150
        and magnitudes.min(initial=1, where=magnitudes > 0) > 1e-140
    ):
        exact_sums = [exact_sum(before[finite]), exact_sum(error)]
        for actual, exact in zip(sums_of(report), exact_sums, strict=True):
            assert abs(actual - exact) <= exact * bound
    if limit:
        assert result.rms_error == np.inf
    else:
        scale = error.max(initial=0) or 1
        mean = np.square(error / scale).sum() / max(np.count_nonzero(known), 1)
        assert result.rms_error == pytest.approx(
            math.sqrt(mean) * scale, rel=max(1e-12, float(bound))
        )


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


def decoded_weights(first: Any, step: float) -> tuple[Array, Array]:
    """Make weights, and float32 that a grid of steps made of them, with what is rare among both."""
    generator = np.random.default_rng(9)
    numbers = generator.standard_normal(5000).astype(np.float32)
    numbers[::701] *= 50
    numbers[1100:1400] *= 1e-5
    left = numbers.astype(first)
    right = (np.rint(left.astype(np.float32) / np.float32(step)) * np.float32(step)).astype("f4")
    right[7::97] += np.float32(step / 3)
    right[5::89] *= np.float32(1e-9)
    left[2100:2110], left[3000:3003] = 0, [np.nan, np.inf, 1e-30]
    right[3001:3003] = [np.inf, -1e30]
    left[4500:], right[4500:] = left[4500:] * first(1e-37), right[4500:] * np.float32(1e-37)
    return left, right


@pytest.mark.parametrize("first", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("step", [0.1, 1e-3])
def test_sums_of_float32_are_those_of_any_pieces(first: Any, step: float) -> None:
    left, right = decoded_weights(first, step)
    reports = []
    for level in LEVELS:
        with at_level(level):
            reports.append(check(left, right).report)
            reports.append(compare(left, right, measure=True, threads=3).report)
            reports.append(report_losses(left, right))
            check(right, left)
            cuts = [0, 1, 34, 1057, 1058, 2999, 4600, left.size]
            pieces = [report_losses(left[a:b], right[a:b]) for a, b in itertools.pairwise(cuts)]
        sums = [sum(column) for column in zip(*map(sums_of, pieces), strict=True)]
        assert sums == sums_of(reports[0])
    assert all(report == reports[0] for report in reports)


@pytest.mark.parametrize("level", LEVELS)
def test_squares_are_rounded_to_float32(level: str) -> None:
    left = np.random.default_rng(2).uniform(1, 2, 3000).astype(np.float32)
    right = left * np.float32(1.001)
    with at_level(level):
        sums = sums_of(report_losses(left, right))
    singles = np.square(left), np.square(right - left)
    exact_sums = [sum(map(Fraction, map(float, column.tolist()))) for column in singles]
    assert sums == [total * 2**LOWEST for total in exact_sums]


@pytest.mark.parametrize("level", LEVELS)
def test_differences_beyond_float32(level: str) -> None:
    numbers = np.array([2.0**127, 3e38, 2.0**126, 1.0], np.float32).astype(ml_dtypes.bfloat16)
    with at_level(level):
        check(numbers, -numbers)
        with np.errstate(over="ignore"):
            narrow = numbers[::-1].astype(np.float16)
        check(numbers, narrow)


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
    with pytest.raises(ValueError, match=r"y has shape \(3,\), x has shape \(2,\)"):
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


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("float32", "float32"),
        ("float32", "bfloat16"),
        ("float64", "float64"),
        ("float16", "float8_e4m3fn"),
        ("int64", "float32"),
        ("complex64", "complex64"),
        (">f4", "<f8"),
    ],
)
def test_arrays_of_a_stack_are_compared_as_alone(level: str, first: str, second: str) -> None:
    generator = np.random.default_rng(2)
    x = np.ldexp(generator.standard_normal((7, 40, 130)), generator.integers(-9, 9, (7, 1, 1)))
    x[1], x[2, 3, 5], x[3] = 0, 1e-42, np.round(x[3])
    y = x * (1 + 2.0**-9 * generator.standard_normal(x.shape))
    y[3] = x[3]
    y[4, 1, 2], y[5, 3, 4] = np.nan, np.inf
    with np.errstate(all="ignore"):
        left = x.astype(WORDS.get(first, first))
        right = y.astype(WORDS.get(second, second))
    if left.dtype.kind != "i":
        left[6, 1, 1], right[6, 1, 1] = np.inf, 1
    with at_level(level):
        for one, other in (
            (left, right),
            (left[::-2, ::3].swapaxes(1, 2), right[::-2, ::3].swapaxes(1, 2)),
        ):
            alone = [compare(a, b, measure=True).report for a, b in zip(one, other, strict=True)]
            ratios = [report.sqnr_db for report in alone if report is not None]
            assert [*map(repr, compare_stacks(one, other))] == [*map(repr, ratios)]
            assert [report_losses(a, b) for a, b in zip(one, other, strict=True)] == alone
            assert report_losses(one, other) == compare(one, other, measure=True).report


def test_empty_stacks() -> None:
    assert compare_stacks(np.zeros((0, 3)), np.zeros((0, 3))) == []
    assert np.isnan(compare_stacks(np.zeros((2, 0)), np.zeros((2, 0)))).all()
    assert compare_stacks(np.ones(2), np.ones(2)) == [np.inf, np.inf]
    for length in (2**45, 2**59):
        x = np.empty((length, 0), np.float32)
        with pytest.raises(
            ValueError, match=rf"x has {length} items along its first axis, .* a part"
        ):
            compare_stacks(x, x)
    with pytest.raises(ValueError, match=r"y has shape \(3,\), x has shape \(2,\)"):
        compare_stacks(np.zeros(2), np.zeros(3))


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"y has shape \(3,\), x has shape \(2,\)"):
        compare(np.zeros(2), np.zeros(3))
    with pytest.raises(TypeError, match="y has dtype object"):
        compare(np.zeros(2), np.array([None, None]))
    with pytest.raises(ValueError, match="threads=0"):
        compare(np.zeros(2), np.zeros(2), threads=0)


WORDS: dict[str, Any] = {
    "float32": np.float32,
    "float64": np.float64,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "int8": np.int8,
    "int64": np.int64,
    "uint64": np.uint64,
    "bool": np.bool_,
    "complex64": np.complex64,
}


def exact(number: Any) -> tuple[Fraction, Fraction]:
    value = number.item() if isinstance(number, np.generic) else number
    if isinstance(value, complex):
        return Fraction(value.real), Fraction(value.imag)
    return Fraction(value if isinstance(value, int) else float(value)), Fraction(0)


def expected_comparison(x: Array, y: Array) -> dict[str, Any]:
    """What exact numbers say of two arrays, element by element."""
    largest: dict[str, tuple[Any, Any]] = {"max_abs": (0.0, None), "max_rel": (0.0, None)}
    different, signal, noise = 0, Fraction(0), Fraction(0)
    for index in np.ndindex(x.shape):
        (a, b), (c, d) = exact(x[index]), exact(y[index])
        gap, size = [(p * p + q * q) for p, q in ((a - c, b - d), (a, b))]
        signal, noise = signal + size, noise + gap
        different += gap != 0
        for name, square in (("max_abs", gap), ("max_rel", gap / size if size else 0)):
            if square and math.sqrt(square) > largest[name][0]:
                largest[name] = math.sqrt(square), index
    return {
        "different": different,
        "sqnr_db": 10 * math.log10(signal / noise) if noise else math.inf,
        **{name: value for name, (value, _) in largest.items()},
    }


@pytest.mark.parametrize("first", WORDS)
@pytest.mark.parametrize("second", WORDS)
def test_public_comparison(first: str, second: str) -> None:
    """Of any two dtypes, in any layout: as exact numbers say, with the places of the largest."""
    generator = np.random.default_rng([len(first), len(second)])
    values = generator.integers(0, 2 if "bool" in (first, second) else 9, (9, 5, 7))
    x = values.astype(WORDS[first])
    y = (values + (generator.random(values.shape) < 0.2)).astype(WORDS[second])
    if {"int64", "uint64"} >= {first, second}:
        x, y = x + x.dtype.type(2**60), y + y.dtype.type(2**60)
    found = castwise.compare(x, y)
    expected = expected_comparison(x, y)
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-12), name
    assert (found.shape, found.dtypes, found.count) == (x.shape, (first, second), x.size)
    for name in ("max_abs", "max_rel"):
        index = getattr(found, f"{name}_index")
        if index is None:
            assert getattr(found, name) == 0
            continue
        (a, b), (c, d) = exact(x[index]), exact(y[index])
        gap = math.hypot(a - c, b - d)
        assert getattr(found, name) == pytest.approx(
            gap if name == "max_abs" else gap / math.hypot(a, b), rel=1e-12
        )
    assert castwise.compare(x.T, y.T).max_abs == found.max_abs
    swapped = x.astype(x.dtype.newbyteorder()) if x.dtype.isbuiltin == 1 else x
    assert castwise.compare(swapped, np.asfortranarray(y), threads=3) == found


def test_public_comparison_counts_ulps_of_the_second_format() -> None:
    x = np.array([[1.0, 1 + 2**-8], [3.0, -2.0]], np.float32)
    y = x.astype(ml_dtypes.bfloat16)
    assert castwise.compare(x, y).max_ulp == 0  # rounded once
    y[1, 0] = y[1, 0] + ml_dtypes.bfloat16(2**-6)
    found = castwise.compare(x, y)
    assert (found.max_ulp, found.max_ulp_index) == (1, (1, 0))
    assert castwise.compare(x, x.astype(np.int32)).max_ulp is None
    assert castwise.compare(x + 0j, x).max_ulp is None


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (np.zeros((0, 3)), np.zeros((0, 3)), {"count": 0, "different": 0, "shape": (0, 3)}),
        (1, 2.5, {"max_abs": 1.5, "max_abs_index": (), "dtypes": ("int64", "float64")}),
        ([1.0, math.nan], [1.0, -math.nan], {"different": 0, "equal_bits": 1, "max_abs": 0.0}),
        ([math.nan, 1.0], [2.0, 1.0], {"different": 1, "max_abs": math.inf, "max_abs_index": (0,)}),
        ([1.0], [math.nan], {"max_abs": math.inf, "max_rel": 0.0, "sqnr_db": -math.inf}),
        ([math.inf], [math.inf], {"different": 0, "max_abs": 0.0}),
        ([math.inf], [-math.inf], {"different": 1, "max_abs": math.inf}),
        ([0.0], [-0.0], {"different": 1, "equal_bits": 0, "max_abs": 0.0, "max_ulp": 0}),
        ([0.0, 1.0], [5.0, 1.0], {"max_rel": 0.0, "max_rel_index": None, "max_abs": 5.0}),
        ([2**63 - 1], np.array([2.0**63]), {"different": 1, "max_abs": 1.0}),
        ([3.0, 1.5e308], [4.0, -1.5e308], {"max_abs": math.inf, "max_rel": 2.0}),
        ([1e-300, 1.0], [1e300, 2.0], {"max_rel": math.inf, "max_rel_index": (0,)}),
    ],
)
def test_public_comparison_of_special_values(x: Any, y: Any, expected: dict[str, Any]) -> None:
    found = castwise.compare(x, y)
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.same is (found.different == 0)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False)).keys() == found.to_dict().keys()
    shown = dict(line.split(maxsplit=1) for line in str(found).splitlines())
    assert shown["different"] == str(found.different)
    assert shown["max_abs_index"] == str(found.max_abs_index)


@pytest.mark.parametrize(
    ("x", "y", "error", "words"),
    [
        (np.zeros(3), np.zeros((3, 1)), ValueError, r"y has shape \(3, 1\), x has shape \(3,\)"),
        (np.zeros(3), 0.0, ValueError, r"y has shape \(\), x has shape \(3,\)"),
        (np.zeros(3), np.ma.zeros(3), TypeError, "y is a masked array"),
        ({"a": 1}, np.zeros(3), TypeError, "x is of type dict, which is not an array"),
        (np.zeros(1), [None], TypeError, r"y\[0\] is of type NoneType"),
        (np.zeros(1), np.zeros(1, "V2"), TypeError, r"y has dtype .V2.* y\.view\(ml_dtypes"),
    ],
)
def test_public_comparison_refuses(x: Any, y: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        castwise.compare(x, y)


def test_a_shuffled_place_of_the_largest_relative_difference_is_found() -> None:
    generator = np.random.default_rng(3)
    x = generator.standard_normal((300, 700)).astype(np.float32)
    y = (x * (1 + generator.random(x.shape) * 1e-3)).astype(np.float32)
    y[211, 17] = x[211, 17] * np.float32(1.5)
    found = castwise.compare(x, y)
    shares = np.abs(y.astype("f8") - x.astype("f8")) / np.abs(x.astype("f8"))
    assert found.max_rel_index == np.unravel_index(np.argmax(shares), x.shape) == (211, 17)
    assert found.max_rel == shares.max()
