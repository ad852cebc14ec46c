"""A scaled cast rounds the exact product once, without a float64 product in between."""

from __future__ import annotations

from typing import Any

import castwise
import numpy as np
import oracle
import pytest
from comparison import first_wrong, wrong
from oracle import DETERMINISTIC, FORMATS, Array, Cast, Exact, Format
from sources import all_codes, random_codes
from support import LEVELS, REAL, array_of, at_level, codes_of

SCALES = (1.0, -1.0, 0.5, 3.0, 1 / 3, -0.1, 448.0, 1e-30, 1e30, 5e-324, 1.7e308, 2.0**-1022)
SOURCES = [
    FORMATS[name] for name in ("float64", "float32", "bfloat16", "float8_e4m3fn", "int64", "uint8")
]


def product(x: Exact, scale: Array) -> Exact:
    """Multiply exactly by float64 scales, as IEEE 754 has it for infinities and zeros."""
    factor = oracle.decode(np.asarray(scale, np.float64).view(np.uint64), FORMATS["float64"])
    nan = x.nan | factor.nan | (x.infinite & factor.zero) | (x.zero & factor.infinite)
    infinite = (x.infinite | factor.infinite) & ~nan
    significand = x.significand.astype(object) * factor.significand.astype(object)
    significand = np.where(infinite | nan, 0, significand).astype(object)
    negative = np.where(nan, x.negative, x.negative ^ factor.negative)
    return Exact(negative, significand, x.exponent + factor.exponent, infinite, nan)


def check(codes: Array, scale: Any, source: Format, target: Format, **options: str) -> None:
    """Compare one scaled cast with the oracle; a NaN made by the product may have any sign."""
    x = oracle.decode(codes, source)
    value = product(x, np.broadcast_to(np.asarray(scale, np.float64), codes.shape))
    cast = Cast(value, target)
    rounding, overflow = options["rounding"], options["overflow"]
    if rounding == "stochastic":
        right = cast.candidates(overflow)
        options["seed"] = 9  # type: ignore[assignment]
    else:
        right = (cast.expected(rounding, overflow),)
    result = castwise.cast(array_of(codes, source), target.name, scale=scale, **options)
    got = codes_of(result, target)
    bad = wrong(got, codes, source, target, *right)
    if target.kind == "float":
        signless = [target.nan(negative=False), target.nan(negative=True)]
        bad &= ~(value.nan & ~x.nan & np.isin(got, signless))
        bad &= ~(x.nan & (np.asarray(scale) < 0) & np.isin(got, signless))
    assert not bad.any(), f"scale {scale!r} {options}: {first_wrong(bad, codes, got, *right)}"


@pytest.mark.thinned(5)
@pytest.mark.parametrize("target", REAL, ids=lambda row: row.name)
@pytest.mark.parametrize("source", SOURCES, ids=lambda row: row.name)
def test_a_scalar_scale(source: Format, target: Format) -> None:
    codes = random_codes(source, 150)
    for number, scale in enumerate(SCALES):
        for overflow in ("ieee", "saturate"):
            rounding = oracle.ROUNDINGS[number % len(oracle.ROUNDINGS)]
            with at_level(LEVELS[number % len(LEVELS)]):
                check(codes, scale, source, target, rounding=rounding, overflow=overflow)


@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize(
    "target", ["bfloat16", "float16", "float8_e4m3fn", "float32", "int8", "float4_e2m1fn"]
)
def test_products_beside_a_midpoint(target: str, rounding: str, level: str) -> None:
    """The exact product lies beside a midpoint; a float64 product would be the midpoint."""
    row, rng = FORMATS[target], np.random.default_rng(11)
    if row.kind == "float":
        steps = rng.integers(1 << row.mantissa_bits, 2 << row.mantissa_bits, 1500)
        midpoints = np.ldexp(steps + 0.5, -row.mantissa_bits)
    else:
        midpoints = rng.integers(-100, 100, 1500) + 0.5
    x = rng.uniform(1, 2, 1500)
    scale = midpoints / x
    source = FORMATS["float64"]
    check(x.view(np.uint64), scale, source, row, rounding=rounding, overflow="ieee")
    cast = Cast(product(oracle.decode(x.view(np.uint64), source), scale), row)
    assert (cast.place != oracle.cast((x * scale).view(np.uint64), source, row).place).any()


@pytest.mark.parametrize("scale", [0.0, -0.0, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(
    "target", ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "int8", "float6_e2m3fn"]
)
def test_special_scales(target: str, scale: float, level: str) -> None:
    x = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -np.nan, 5e-324, -1.7e308])
    for overflow in ("ieee", "saturate"):
        check(
            x.view(np.uint64),
            scale,
            FORMATS["float64"],
            FORMATS[target],
            rounding="nearest-even",
            overflow=overflow,
        )


@pytest.mark.parametrize("shape", [(), (1,), (5,), (7, 1), (7, 5), (3, 1, 1), (3, 7, 5), (1, 1, 5)])
@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "int32"])
def test_scale_arrays_broadcast(shape: tuple[int, ...], kind: str, level: str) -> None:
    rng = np.random.default_rng(13)
    scale = (rng.normal(size=shape) * 4 + 5).astype(kind)
    for source in (FORMATS["float32"], FORMATS["float64"]):
        codes = rng.normal(size=(3, 7, 5)).astype(source.dtype).view(source.codes)
        check(codes, scale, source, FORMATS["bfloat16"], rounding="nearest-even", overflow="ieee")
        fortran = castwise.cast(
            np.asfortranarray(codes.view(source.dtype)), "bfloat16", scale=scale
        )
        assert np.array_equal(
            fortran, castwise.cast(codes.view(source.dtype), "bfloat16", scale=scale)
        )


def test_a_per_channel_scale_is_the_scale_of_each_channel(level: str) -> None:
    """Long rows, over several tiles and threads, with strided scales."""
    rng = np.random.default_rng(17)
    x = rng.normal(size=(6, 70_001)).astype(np.float32)
    scale = rng.uniform(0.5, 500, 12)[::2]
    for target in ("float8_e4m3fn", "int8", "float16"):
        rows = [
            castwise.cast(row, target, scale=float(each))
            for row, each in zip(x, scale, strict=True)
        ]
        for threads in (1, 4):
            together = castwise.cast(x, target, scale=scale[:, np.newaxis], threads=threads)
            assert together.tobytes() == b"".join(row.tobytes() for row in rows)
        columns = castwise.cast(x.T, target, scale=scale, order="C")
        assert columns.T.tobytes() == b"".join(row.tobytes() for row in rows)


@pytest.mark.parametrize("source", ["float16", "bfloat16", "float8_e4m3fn", "uint8", "int8"])
def test_many_elements_are_scaled_as_few_are(source: str, level: str) -> None:
    """All codes at once take other routes than single values, which the oracle checks above."""
    row = FORMATS[source]
    x = array_of(np.arange(1 << row.bits, dtype=row.codes), row)
    x = np.tile(x, (1 << 17) // x.size)
    pieces = np.array_split(x[: 1 << 16], 64)
    for target in ("float64", "float32", "float16", "bfloat16", "float8_e5m2", "float8_e8m0fnu"):
        for scale in (0.1, -1 / 3, 1.5, 1e-5, 1e39):
            whole = castwise.cast(x, target, scale=scale)[: 1 << 16]
            few = [castwise.cast(piece, target, scale=scale) for piece in pieces]
            assert whole.tobytes() == b"".join(part.tobytes() for part in few), (target, scale)


@pytest.mark.parametrize("target", REAL, ids=lambda row: row.name)
def test_a_scale_of_one_changes_nothing(target: Format, level: str) -> None:
    x = np.random.default_rng(19).normal(size=1000) * 50
    assert (
        castwise.cast(x, target.name, scale=1.0).tobytes()
        == castwise.cast(x, target.name).tobytes()
    )


def test_complex_values_scale_in_both_parts(level: str) -> None:
    x = np.array([1 + 2j, -3.5 - 0.1j], np.complex64)
    got = castwise.cast(x, "complex128", scale=0.1)
    assert np.array_equal(got.view(np.float64), x.view(np.float32).astype(np.float64) * 0.1)


def test_overflow_is_judged_after_the_scale(level: str) -> None:
    x = np.array([1.0, 1000.0])
    assert castwise.cast(x, "float8_e4m3fn", scale=0.25, overflow="raise").astype(
        float
    ).tolist() == [0.25, 256]
    with pytest.raises(OverflowError, match="index 1"):
        castwise.cast(x, "float8_e4m3fn", scale=0.5, overflow="raise")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("rounding", ["nearest-even", "nearest-away"])
@pytest.mark.parametrize("target", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("source", ["float16", "bfloat16"])
def test_factors_with_products_beside_the_grid(
    source: str, target: str, rounding: str, level: str
) -> None:
    """Another factor may stand in for one if its products have the same results."""
    row, rng = FORMATS[source], np.random.default_rng(23)
    x = array_of(all_codes(row), row)
    points, significands = rng.integers(1, 2048, (2, 8))
    near = points / significands
    with_both_sides = [*near, *np.nextafter(near, 0), *np.nextafter(near, 4), *np.float32(near)]
    extreme = [5e-324, 1e-40, 2.0**-30, 1e30, 1e300]
    for scale in (0.1, -1 / 3, 448 / 3, 1 + 2**-23, *extreme, *with_both_sides):
        with at_level("portable"):
            expected = castwise.cast(x, target, scale=scale, rounding=rounding)
        found = castwise.cast(x, target, scale=scale, rounding=rounding)
        assert found.tobytes() == expected.tobytes(), scale
