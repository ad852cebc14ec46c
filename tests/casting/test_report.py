"""The report of a cast equals an independent recount in fractions, and merges exactly.

Sums of squares are rounded within tiles of 1,024 elements: they are the same to the last bit as
long as the same elements are in the same tile in the same order, and else within 1e-12.
"""

from __future__ import annotations

import copy
import math
import pickle
from fractions import Fraction
from typing import Any

import castwise
import numpy as np
import pytest
import support
from hypothesis import given
from hypothesis import strategies as st
from oracle import FORMATS, Format
from recount import alike, sums_of
from reports import FIELDS, check, identity
from sources import all_codes, random_codes, sources_around
from support import AVAILABLE, COMPLEX, REAL, array_of

SOURCES = (
    "float16", "bfloat16", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu", "float4_e2m1fn",
    "float32", "float64", "int16", "int64", "uint64", "bool",
)  # fmt: skip


@pytest.mark.thinned(53)
@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize("target", REAL, ids=lambda row: row.name)
@pytest.mark.parametrize("source", SOURCES)
def test_a_recount(source: str, target: Format, overflow: str) -> None:
    row = FORMATS[source]
    codes = all_codes(row) if row.bits <= 16 else sources_around(row, target)
    codes = codes[:: max(1, codes.size // 700)]
    for rounding in (None, "towards-positive", "nearest-away"):
        check(codes, row, target, rounding=rounding, overflow=overflow)


@pytest.mark.parametrize("target", COMPLEX, ids=lambda row: row.name)
def test_complex_counts_components(target: Format, level: str) -> None:
    source = FORMATS["complex128"]
    codes = sources_around(source, target)
    codes = codes[:: max(1, codes.size * support.FEWER**2 // 2000)]
    check(codes[: codes.size // 2 * 2].reshape(-1, 2), source, target)


@pytest.mark.parametrize("target", REAL, ids=lambda row: row.name)
def test_nan_rules(target: Format, level: str) -> None:
    x = np.array([np.nan, -np.nan, 1.0, -1000.0, np.inf])
    for nan in ("keep", "zero") if target.has_zero else ("keep",):
        for overflow in ("ieee", "saturate"):
            check(x.view(np.uint64), FORMATS["float64"], target, nan=nan, overflow=overflow)


def test_nothing_counts_nothing(level: str) -> None:
    check(np.zeros((0, 3), np.uint64), FORMATS["float64"], FORMATS["bfloat16"])
    nothing = castwise.cast([], "bfloat16", report=True)[1]
    some = castwise.cast(np.ones(3), "bfloat16", report=True)[1]
    assert identity(nothing + some) == identity(some) == identity(some + nothing)


def test_the_report_of_a_scaled_cast_is_of_the_scaled_values(level: str) -> None:
    x = np.array([0.0, 0.5, -3.0, 1e-3])
    report = castwise.cast(x, "float8_e4m3fn", scale=256.0, report=True)[1]
    assert (report.amax, report.amin_nonzero) == (768.0, 1e-3 * 256)
    assert (report.overflowed, report.exact) == (1, 2)
    assert report.max_abs_error == math.inf
    within = castwise.cast(x[[0, 1, 3]], "float8_e4m3fn", scale=256.0, report=True)[1]
    assert within.max_abs_error == 1e-3 * 256 - 0.25


INFINITE = (math.inf, math.inf, -math.inf)


def errors_of(report: castwise.CastReport) -> tuple[float, float, float]:
    return report.max_abs_error, report.max_rel_error, report.sqnr_db


@pytest.mark.thinned(7)
@pytest.mark.parametrize(
    "target", [row for row in AVAILABLE if not row.part], ids=lambda row: row.name
)
@pytest.mark.parametrize("source", ["float32", "float64", "float16", "bfloat16", "float8_e5m2"])
def test_a_number_that_becomes_infinite_or_nan_is_an_infinite_error(
    source: str, target: Format, level: str
) -> None:
    """By every route: few elements, counted codes, strides, scales; not what was so before."""
    numbers = castwise.cast([1.0, 0.0, -2.0, 57_344.0, math.inf, math.nan], source)
    for x in (*numbers, numbers, np.repeat(numbers, 5000), np.repeat(numbers, 2)[::2]):
        for options in ({}, {"scale": 1.0}, {"overflow": "saturate"}, {"rounding": "towards-zero"}):
            y, report = castwise.cast(x, target.name, report=True, **options)
            before, after = (castwise.cast(array, "float64") for array in (x, y))
            lost = np.isfinite(before) & ~np.isfinite(after)
            assert (errors_of(report) == INFINITE) == lost.any(), (x, options)
            assert all(map(math.isfinite, errors_of(report)[:2])) or lost.any()


def test_a_ruined_cast_is_not_called_perfect_when_it_is_merged() -> None:
    ruined = castwise.cast(np.array([1, 1e6, 1e6, 1e6], np.float32), "float8_e4m3fn", report=True)
    exact = castwise.cast(np.ones(1000, np.float32), "float8_e4m3fn", report=True)[1]
    parts = [exact, ruined[1], castwise.CastReport(), exact]
    for merged in (sum(parts), sum(reversed(parts)), parts[0] + (parts[1] + (parts[2] + parts[3]))):
        assert errors_of(merged) == INFINITE
        assert merged.to_dict()["sqnr_db"] == -math.inf
        assert pickle.loads(pickle.dumps(merged)) == merged  # noqa: S301
        assert "inf" in str(merged)
    assert errors_of(exact) == (0.0, 0.0, math.inf)
    nothing_left = castwise.cast([1e6, math.inf], "float8_e4m3fn", report=True)[1]
    assert errors_of(nothing_left) == INFINITE


@given(st.lists(st.integers(0, 3000), max_size=5), st.sampled_from(AVAILABLE), st.integers(0, 9))
def test_merging_is_exactly_associative_and_commutative(
    cuts: list[int], target: Format, seed: int
) -> None:
    """Any order says the same to the last bit; any partition what the cast of the whole says."""
    source = FORMATS["float64" if seed % 2 else "float32"]
    codes = random_codes(source, 3000, seed)
    near_one = (
        (np.random.default_rng(seed).normal(size=1500)).astype(source.dtype).view(source.codes)
    )
    x = np.concatenate([codes[:1500], near_one]).view(source.dtype)
    whole = castwise.cast(x, target.name, report=True)[1]
    parts = [castwise.cast(part, target.name, report=True)[1] for part in np.split(x, sorted(cuts))]
    left = parts[0]
    for part in parts[1:]:
        left = left + part
    right = parts[-1]
    for part in reversed(parts[:-1]):
        right = part + right
    backwards = parts[-1]
    for part in reversed(parts[:-1]):
        backwards = backwards + part
    assert left == right == backwards
    assert identity(left) == identity(right) == identity(backwards)
    assert alike(left, whole)
    tiles = [castwise.cast(part, target.name, report=True)[1] for part in np.split(x, [1024, 2048])]
    assert sum(tiles) == whole


@pytest.mark.thinned(4)
@pytest.mark.parametrize("source", ["float32", "float64", "float16", "int32"])
def test_threads_layout_and_levels_do_not_change_it(source: str) -> None:
    rng = np.random.default_rng(8)
    shape = 700 // support.FEWER, 501
    values = rng.normal(size=shape) * np.exp(rng.normal(size=shape) * 5)
    x = np.clip(values, -60_000, 60_000).astype(source)
    arrays = (x, np.asfortranarray(x), x[::-1], x.ravel(), np.repeat(x, 2, axis=1)[:, ::2])
    for target in ("float8_e4m3fn", "bfloat16", "int8", "float32"):
        whole = castwise.cast(x, target, report=True)[1]
        for array in arrays:
            said = []
            for level in castwise.cpu_levels():
                castwise._core.set_cpu_level(level)
                said += [
                    castwise.cast(array, target, threads=threads, report=True)[1]
                    for threads in (1, 2, 5)
                ]
            assert all(report == said[0] for report in said), target
            assert alike(said[0], whole), target


@pytest.mark.parametrize("target", ["bfloat16", "float16", "float8_e4m3fn", "int8", "float32"])
@pytest.mark.parametrize("source", ["float32", "bfloat16", "float16"])
def test_sums_are_of_whole_tiles(source: str, target: str) -> None:
    """Whatever the level, the alignment, and the pieces that begin at whole tiles."""
    rng = np.random.default_rng(12)
    values = rng.normal(size=5000) * np.exp2(rng.integers(-12, 6, 5000))
    values[::700] = 3e4
    x = castwise.cast(values, source)
    skewed = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype)
    skewed[...] = x
    said = []
    for level in castwise.cpu_levels():
        castwise._core.set_cpu_level(level)
        for array in (x, skewed):
            said.append(castwise.cast(array, target, report=True)[1])
            parts = np.split(array, [1024, 3072, 4096])
            said.append(sum(castwise.cast(part, target, report=True)[1] for part in parts))
            said.append(sum(castwise.cast(part, target, report=True)[1] for part in parts[::-1]))
    assert all(report == said[0] for report in said)


@pytest.mark.parametrize("size", [1, 64, 65, 1024, 4096 + 64, 9999])
def test_sums_are_those_of_fractions(size: int, level: str) -> None:
    rng = np.random.default_rng(size)
    for spread in (1, 60):
        x = rng.normal(size=size) * np.exp2(rng.integers(-spread, spread, size))
        x = x.astype(np.float32)
        y, report = castwise.cast(x, "bfloat16", report=True)
        error = castwise.cast(y, "float64") - x
        for got, roots in zip(sums_of(report), (x.astype(np.float64), error), strict=True):
            want = sum((Fraction(root) ** 2 for root in roots.tolist()), Fraction(0))
            assert abs(Fraction(got, 2**2148) - want) * 10**12 <= want


def test_a_report_changes_no_bit_of_the_result(level: str) -> None:
    for source in (FORMATS["float32"], FORMATS["float64"], FORMATS["int64"], FORMATS["bfloat16"]):
        for target in REAL:
            x = array_of(random_codes(source, 5000), source)
            for options in ({}, {"rounding": "stochastic", "seed": 3}, {"overflow": "saturate"}):
                with_report = castwise.cast(x, target.name, report=True, **options)[0]
                assert with_report.tobytes() == castwise.cast(x, target.name, **options).tobytes()


SAMPLES = (
    [1.0, 500.0, np.nan],
    [],
    [0.0, -0.0],
    [np.nan, np.inf],
    [1e-30, 1e-300, 5e-324, 3.0, -1e300],
    [1 / 3, 2 / 3, 1e-7],
)


def report_of(values: list[float], target: str = "float8_e4m3fn") -> castwise.CastReport:
    report = castwise.cast(np.array(values, np.float64), target, report=True)[1]
    assert isinstance(report, castwise.CastReport)
    return report


def told_apart_by_hash(one: object, other: object) -> bool | None:
    """Tell whether the hashes differ; None for things without one."""
    return None if type(one).__hash__ is None else hash(one) != hash(other)


@pytest.mark.parametrize("values", SAMPLES, ids=str)
def test_copies_and_pickles_say_the_same_and_merge_the_same(values: list[float]) -> None:
    """The sums behind the decibels travel too: a merge after the journey is exact."""
    report, more = report_of(values), report_of([1e-3, 7.7, 1e10])
    copies = [copy.copy(report), copy.deepcopy(report)]
    copies += [pickle.loads(pickle.dumps(report, level)) for level in range(2, 6)]  # noqa: S301
    for other in copies:
        assert type(other) is castwise.CastReport
        assert identity(other) == identity(report)
        assert identity(other + more) == identity(report + more) == identity(more + other)
        assert other == report
        assert told_apart_by_hash(other, report) in (False, None)


def test_reports_are_equal_when_all_they_say_is() -> None:
    reports = [report_of(values) for values in SAMPLES]
    for i, one in enumerate(reports):
        for j, other in enumerate(reports):
            assert (one == other) == (i == j)
        assert one == report_of(SAMPLES[i])
        assert told_apart_by_hash(one, report_of(SAMPLES[i])) in (False, None)
        assert one != identity(one)
        assert one != 0


def test_no_relative_error_of_zeros_that_become_numbers() -> None:
    zero = np.zeros(1, np.float32)
    _, report = castwise.cast(zero, "float8_e8m0fnu", overflow="saturate", report=True)
    assert (report.max_abs_error, report.max_rel_error) == (2.0**-127, 0.0)


def test_sum_merges_reports() -> None:
    reports = [report_of(values) for values in SAMPLES]
    whole = report_of([value for values in SAMPLES for value in values])
    assert identity(sum(reports)) == identity(sum(reversed(reports))) == identity(whole)
    assert identity(sum(reports[:1])) == identity(reports[0])
    for nonsense in (1, 0.5, "0", None, [], True):
        with pytest.raises(TypeError):
            nonsense + reports[0]  # type: ignore[operator]
        with pytest.raises(TypeError):
            reports[0] + nonsense  # type: ignore[operator]


@pytest.mark.parametrize("values", SAMPLES, ids=str)
@pytest.mark.parametrize("target", ["float8_e4m3fn", "float32", "int8"])
def test_the_printed_numbers_are_the_numbers(values: list[float], target: str) -> None:
    """Each field has a line; a count is printed whole, a magnitude to three digits or more."""
    report = report_of(values, target)
    lines = [line.split() for line in str(report).splitlines()]
    printed = {words[0]: words[1] for words in lines if len(words) > 1 and words[0] in FIELDS}
    assert set(printed) == set(FIELDS)
    for field, value in report.to_dict().items():
        if isinstance(value, int):
            assert int(printed[field]) == value
        elif math.isnan(value):
            assert printed[field].lower() == "nan"
        else:
            near = math.isclose(float(printed[field]), value, rel_tol=1e-3)
            assert near or (field == "sqnr_db" and abs(float(printed[field]) - value) < 0.01)


def test_it_prints_as_a_small_table() -> None:
    report = castwise.cast(np.array([1.0, 500.0, np.nan]), "float8_e4m3fn", report=True)[1]
    text = str(report)
    assert 3 <= len(text.splitlines()) <= 30
    for number in ("3", "500"):
        assert number in text
    for word in ("exact", "overflow", "nan"):
        assert word in text.lower()
    assert report.to_dict()["overflowed"] == 1
    with pytest.raises(TypeError):
        report + 1


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ((0, 0), 3, "exact=5 and count=3"),
        ((0, 2), 9, "overflowed=9 and count=8"),
        ((0, 6), 7, "underflowed=1, nan_in=7, inf_in=1, zero_in=1 and count=8"),
        ((1, 0), -1.0, "amax=-1"),
        ((1, 2), math.nan, "max_abs_error=NaN"),
        ((1, 1), 1e30, "amin_nonzero=1.*amax="),
    ],
)
def test_a_saved_report_that_disagrees_is_refused(
    place: tuple[int, int], value: float, said: str
) -> None:
    report = report_of([1.0, 2.0, 3.0, 1e-9, math.inf, math.nan, 0.0, 1e6])
    restore, state = report.__reduce__()
    parts: Any = [*map(list, state[:2]), *state[2:]]
    assert restore(*parts) == report
    parts[place[0]][place[1]] = value
    with pytest.raises(ValueError, match=rf"saved report is damaged \(.*{said}.*\); cast again"):
        restore(*parts)
