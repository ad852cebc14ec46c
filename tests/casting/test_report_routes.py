"""Every route gives the same report: with the plain cast, by counting codes, by flags."""

from __future__ import annotations

from typing import Any

import castwise
import numpy as np
import pytest
from oracle import FORMATS, Array, Format
from recount import alike
from reports import check, identity
from sources import all_codes
from support import LEVELS, array_of, at_level

SOURCES = ("float32", "bfloat16", "float16", "int16")
TARGETS = (
    "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float6_e2m3fn", "float4_e2m1fn", "int8", "uint4", "uint16",
)  # fmt: skip
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"overflow": "saturate"},
    {"nan": "zero"},
    {"rounding": "towards-zero"},
    {"rounding": "towards-positive"},
    {"rounding": "towards-negative", "overflow": "saturate", "nan": "zero"},
    {"rounding": "nearest-away"},
)


def samples(source: str) -> dict[str, Array]:
    """Give arrays of several tiles, each with another difficulty."""
    row = FORMATS[source]
    rng = np.random.default_rng(5)
    normal = rng.normal(size=6001)
    few = rng.random(6001) < 1e-3
    kinds = {
        "normal": normal,
        "wide": normal * np.exp2(rng.integers(-30, 12, 6001)),
        "very wide": normal * np.exp2(rng.integers(-160, 120, 6001)),
        "some zero": np.where(rng.random(6001) < 0.5, 0.0, normal),
        "one value": np.full(6001, 1.1),
        "one value below": np.full(6001, 1e-5),
        "all zero": np.zeros(6001),
        "growing": np.exp2(np.linspace(-149, 127, 6001)),
        "few beyond": np.where(few, 1e30, normal),
        "few special": np.where(few, rng.choice([np.nan, np.inf, -np.inf], 6001), normal),
    }
    if row.kind != "float":
        return {"integers": rng.integers(-3000, 3000, 6001).astype(row.dtype)}
    with np.errstate(over="ignore", invalid="ignore"):
        return {name: values.astype(row.dtype) for name, values in kinds.items()}


def every_code(row: Format) -> Array:
    """All codes in the order of their magnitude, so that most tiles have no NaN or infinity."""
    codes = all_codes(row)
    values = np.abs(castwise.cast(array_of(codes, row), "float64"))
    return codes[np.argsort(values, kind="stable")]


@pytest.mark.thinned(5)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_every_level_says_what_flags_say(source: str, target: str) -> None:
    """A scale of 1 changes no value, but takes the route through flags and float64."""
    arrays = samples(source)
    if FORMATS[source].bits == 16:
        arrays["codes"] = array_of(every_code(FORMATS[source]), FORMATS[source])
    wraps = {FORMATS[source].kind, FORMATS[target].kind} <= {"int", "uint"}
    for name, x in arrays.items():
        for options in OPTIONS:
            if wraps and options.get("overflow") != "saturate":
                continue
            with at_level("portable"):
                flags = castwise.cast(x, target, scale=1.0, report=True, **options)[1]
                want = castwise.cast(x, target, report=True, **options)[1]
            assert alike(want, flags), (name, options)
            for level in LEVELS:
                with at_level(level):
                    y, report = castwise.cast(x, target, report=True, **options)
                    assert report == want, (name, options, level)
                    assert y.tobytes() == castwise.cast(x, target, **options).tobytes()


@pytest.mark.thinned(5)
@pytest.mark.parametrize("target", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("source", ["float16", "bfloat16"])
def test_a_recount_of_adjacent_values(source: str, target: str, level: str) -> None:
    """Codes of adjacent magnitudes, without special values."""
    codes = every_code(FORMATS[source])
    for start in range(0, codes.size, 8000):
        for rounding in (None, "towards-negative"):
            some = codes[start : start + 400]
            check(some, FORMATS[source], FORMATS[target], rounding=rounding)


@pytest.mark.parametrize(
    "target", ["float32", "bfloat16", "float8_e5m2", "float4_e2m1fn", "int8", "uint4"]
)
@pytest.mark.parametrize(
    "source", ["float8_e4m3fn", "float8_e5m2fnuz", "float8_e8m0fnu", "int8", "uint8"]
)
def test_counting_codes_says_what_looking_at_them_says(
    source: str, target: str, level: str
) -> None:
    row = FORMATS[source]
    rng = np.random.default_rng(6)
    x = array_of(rng.integers(0, 256, 40_003).astype(np.uint8), row)
    for options in OPTIONS:
        y, whole = castwise.cast(x, target, report=True, **options)
        parts = [
            castwise.cast(part, target, report=True, **options)[1] for part in np.array_split(x, 9)
        ]
        assert identity(whole) == identity(sum(parts)) == identity(sum(reversed(parts)))
        assert whole == sum(parts)
        assert y.tobytes() == castwise.cast(x, target, **options).tobytes()


@pytest.mark.parametrize("target", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "source",
    [
        "float8_e4m3fn", "float8_e5m2", "float8_e3m4", "float8_e4m3fnuz", "float8_e5m2fnuz",
        "float6_e2m3fn", "float4_e2m1fn", "int8", "uint8", "int4", "bool",
    ],
)  # fmt: skip
def test_bytes_that_lose_nothing(source: str, target: str) -> None:
    """All codes are finite but one or none; they have all magnitudes, or only some."""
    row = FORMATS[source]
    codes = every_code(row)
    values = castwise.cast(array_of(codes, row), "float64")
    finite = codes[np.isfinite(values)]
    rng = np.random.default_rng(11)
    for some in (finite, finite[finite.size // 2 :][:9], finite[:1]):
        picked = rng.choice(some, 33_003)
        for special in (picked[0], codes[-1]):
            picked[20_000] = special
            x = array_of(picked, row)
            with at_level("portable"):
                want = identity(castwise.cast(x, target, scale=1.0, report=True)[1])
            for level in LEVELS:
                with at_level(level):
                    report = castwise.cast(x, target, report=True)[1]
                    assert identity(report) == want, level
                    parts = [
                        castwise.cast(part, target, report=True)[1] for part in (x[:20], x[20:])
                    ]
                    assert identity(sum(parts)) == want, level


@pytest.mark.parametrize(("source", "target"), [("float32", "bfloat16"), ("float8_e4m3fn", "int8")])
def test_layouts_and_threads(source: str, target: str, level: str) -> None:
    x = castwise.cast(np.random.default_rng(7).normal(size=(300, 401)), source)
    want = castwise.cast(x, target, threads=1, report=True)[1]
    arrays = [np.asfortranarray(x), x[::-1, ::-1], np.repeat(x, 2, axis=1)[:, ::2]]
    if x.dtype.byteorder == "=" and x.dtype.isbuiltin == 1 and x.itemsize > 1:
        arrays.append(x.astype(x.dtype.newbyteorder("S")))
    for array in (x, *arrays):
        alone = castwise.cast(array, target, threads=1, report=True)[1]
        assert alike(alone, want)
        for threads in (1, 2, 3):
            y, report = castwise.cast(array, target, threads=threads, report=True)
            assert report == alone
            np.testing.assert_array_equal(y, castwise.cast(array, target))


@pytest.mark.parametrize(
    ("source", "target"), [("bfloat16", "float16"), ("float8_e5m2", "float8_e4m3fn")]
)
def test_in_place(source: str, target: str, level: str) -> None:
    """The report is of what was there before the cast."""
    x = castwise.cast(np.random.default_rng(8).normal(size=50_000), source)
    y, want = castwise.cast(x, target, report=True)
    out = x.view(y.dtype)
    report = castwise.cast(x, target, out=out, report=True)[1]
    assert identity(report) == identity(want)
    assert out.tobytes() == y.tobytes()


def test_large_arrays_that_do_not_stay_in_the_caches(level: str) -> None:
    """Results that are stored past the caches are all in the report."""
    x = np.random.default_rng(9).normal(size=6_000_011).astype(np.float32)
    y, report = castwise.cast(x, "bfloat16", report=True, threads=2)
    np.testing.assert_array_equal(y.view(np.uint16), castwise.cast(x, "bfloat16").view(np.uint16))
    parts = [castwise.cast(part, "bfloat16", report=True)[1] for part in np.array_split(x, 7)]
    assert alike(sum(parts), report)
    tiles = np.split(x, range(1 << 20, x.size, 1 << 20))
    assert sum(castwise.cast(part, "bfloat16", report=True)[1] for part in tiles) == report
