"""Stochastic rounding: the right odds, exact values unmoved, draws by seed and index alone.

The other roundings are compared bit for bit in test_exhaustive.py and test_wide.py.
"""

from __future__ import annotations

from typing import Any

import castwise
import numpy as np
import oracle
import pytest
from comparison import wrong
from oracle import FORMATS, Array
from sources import random_codes
from support import COMPLEX, FLOATS, LEVELS, REAL, array_of, at_level, codes_of

COUNT = 1 << 18
SIGMAS = 5.0  # with fixed seeds a test passes always or never

# source, target, the neighbors; the source can hold three binary digits of their gap and more
GAPS: list[tuple[str, str, float, float]] = [
    ("float32", "bfloat16", 1.0, 1.0078125),
    ("float32", "float16", 0.0, 2.0**-24),
    ("float32", "float8_e4m3fn", -18.0, -20.0),
    ("float32", "float8_e5m2fnuz", 0.0, -(2.0**-17)),
    ("float32", "float8_e8m0fnu", 4.0, 8.0),
    ("float16", "float8_e5m2", 1.0, 1.25),
    ("bfloat16", "float4_e2m1fn", 4.0, 6.0),
    ("bfloat16", "float6_e3m2fn", -1.0, -1.25),
    ("float64", "bfloat16", -1e30, -1e30),
    ("float64", "float32", 1.0, 1.0 + 2.0**-23),
    ("float64", "float32", 0.0, 2.0**-149),
    ("float64", "int8", 2.0, 3.0),
    ("float32", "int4", -3.0, -4.0),
    ("float64", "uint64", 2.0**40, 2.0**40 + 1),
    ("int64", "bfloat16", 2.0**40, 2.0**40 + 2.0**33),
    ("int32", "float8_e5m2", -1024.0, -1280.0),
]


def stochastic(x: Array, target: str, **options: Any) -> Array:
    return castwise.cast(x, target, **{"rounding": "stochastic", "seed": 1, **options})


def neighbors(value: float, other: float, target: str) -> tuple[float, float]:
    """Give two neighbors of the target; for one value given twice, those around it."""
    if value != other:
        return value, other
    low, high = (
        castwise.cast(np.float64(value), target, rounding=f"towards-{way}")
        for way in ("zero", "negative")
    )
    return float(low), float(high)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("eighths", [1, 3, 4, 6, 7])
@pytest.mark.parametrize(("source", "target", "low", "high"), GAPS)
def test_the_odds_are_the_fraction_of_the_gap(
    source: str, target: str, low: float, high: float, eighths: int
) -> None:
    low, high = neighbors(low, high, target)
    value = low + (high - low) * eighths / 8
    x = np.full(COUNT, value, FORMATS[source].dtype)
    assert float(x[0]) == value
    result = stochastic(x, target).astype(np.float64)
    moved = int((result == high).sum())
    assert moved + int((result == low).sum()) == COUNT
    odds = eighths / 8
    assert abs(moved - COUNT * odds) < SIGMAS * (COUNT * odds * (1 - odds)) ** 0.5


@pytest.mark.thinned(3)
@pytest.mark.parametrize("target", ["bfloat16", "float8_e4m3", "float32", "int16"])
@pytest.mark.parametrize("rare", ["moves", "stays"])
def test_small_fractions_count(target: str, rare: str) -> None:
    """Odds of 2**-18 are kept: of 2**22 draws about 16 move, not none and not a hundred."""
    unit = 1.0 if target == "int16" else 2.0 ** -FORMATS[target].mantissa_bits
    fraction = 2.0**-18 if rare == "moves" else 1 - 2.0**-18
    x = np.full(1 << 22, 1 + unit * fraction)
    moved = stochastic(x, target).astype(np.float64) > 1
    assert 3 <= int((moved if rare == "moves" else ~moved).sum()) <= 40


@pytest.mark.parametrize("target", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_the_mean_is_unbiased(target: str) -> None:
    x = np.random.default_rng(5).normal(size=COUNT)
    error = stochastic(x, target).astype(np.float64) - x
    assert abs(error.sum()) < SIGMAS * np.sqrt((error**2).sum())


@pytest.mark.parametrize("target", REAL, ids=lambda row: row.name)
def test_exact_values_never_move(target: oracle.Format, level: str) -> None:
    """Every value of the target is itself, from a wider format, under every one of 20 seeds."""
    source = FORMATS["float64"] if target.kind == "float" else FORMATS["int64"]
    codes = np.arange(1 << target.bits) if target.bits <= 8 else random_codes(target, 5000)
    wide = castwise.cast(array_of(codes, target), source.name)
    exact = oracle.cast(wide.view(np.uint64), source, target)
    wide = wide[(exact.place == oracle.EXACT) & ~exact.expected("towards-zero", "ieee").overflows]
    still = castwise.cast(wide, target.name)
    for seed in range(20):
        moved = stochastic(wide, target.name, seed=seed)
        assert np.array_equal(codes_of(moved, target), codes_of(still, target))


def test_a_draw_is_the_index_s_own() -> None:
    """A value that moves at one fraction moves at every larger one."""
    moved = np.zeros(COUNT, bool)
    for eighths in range(1, 8):
        now = stochastic(np.full(COUNT, 1 + eighths / 8 * 2.0**-7), "bfloat16").astype(float) > 1
        assert not (moved & ~now).any()
        assert now.sum() > moved.sum()
        moved = now
    one_in_two = np.where(np.arange(COUNT) % 2, 1 + 7 / 8 * 2.0**-7, 1.0)
    assert np.array_equal(
        stochastic(one_in_two, "bfloat16").astype(float) > 1, moved & (one_in_two > 1)
    )


def test_draws_are_independent_of_each_other() -> None:
    """No correlation between neighboring indices, indices a power of two apart, or seeds."""
    x = np.full(COUNT, 1 + 2.0**-8)
    bits = {
        seed: stochastic(x, "bfloat16", seed=seed).astype(float) > 1
        for seed in (0, 1, 2, 2**32, 2**64 - 1)
    }
    first = np.where(bits[0], 1, -1)
    others = [np.where(bits[seed], 1, -1) for seed in bits if seed]
    for lag in (1, 2, 3, 4, 8, 16, 64, 256, 1024, 4096, 65536):
        others.append(np.roll(first, lag))
    for other in others:
        assert abs(int((first * other).sum())) < SIGMAS * COUNT**0.5


@pytest.mark.thinned(5)
@pytest.mark.parametrize("source", ["float32", "float64", "int32"])
@pytest.mark.parametrize("target", ["bfloat16", "float8_e4m3fn", "float4_e2m1fn", "float16"])
def test_nothing_but_seed_and_index_matters(source: str, target: str) -> None:
    """Levels, threads, layout, shape, and where the array ends do not change a bit."""
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(1 << 12, 257)) * 1000).astype(source)
    options = {"overflow": "saturate", "seed": 77}
    want = stochastic(x, target, threads=1, **options)
    assert want.tobytes() != stochastic(x, target, overflow="saturate", seed=78).tobytes()
    for level in LEVELS:
        with at_level(level):
            assert stochastic(x, target, threads=1, **options).tobytes() == want.tobytes()
            for threads in (2, 3, 8):
                assert stochastic(x, target, threads=threads, **options).tobytes() == want.tobytes()
            fortran = stochastic(np.asfortranarray(x), target, order="C", **options)
            assert fortran.tobytes() == want.tobytes()
            flipped = np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1]
            assert stochastic(flipped, target, order="C", **options).tobytes() == want.tobytes()
            assert stochastic(x.ravel(), target, **options).tobytes() == want.tobytes()
            for end in (1, 15, 16, 17, 1023, 1025, 99_999):
                part = stochastic(x.ravel()[:end], target, **options)
                assert part.tobytes() == want.ravel()[:end].tobytes()


@pytest.mark.parametrize("target", ["bfloat16", "float16", "float8_e4m3fn", "int8", "uint8"])
@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
def test_float32_of_every_kind_is_rounded_alike_on_all_levels(target: str, overflow: str) -> None:
    """NaN, infinities, zeros, subnormals, and numbers about every power of two."""
    rng = np.random.default_rng(6)
    upper = np.repeat(np.arange(1 << 16, dtype=np.uint32), 8) << np.uint32(16)
    x = (upper | rng.integers(0, 1 << 16, upper.size, np.uint32)).view(np.float32)
    normal = rng.normal(size=x.size).astype(np.float32)
    # Few enough of what is rare that the others keep their quick ways.
    normal[::997] = x[::997]
    with at_level("portable"):
        want = [stochastic(values, target, overflow=overflow).tobytes() for values in (x, normal)]
    for level in LEVELS:
        with at_level(level):
            got = [
                stochastic(values, target, overflow=overflow).tobytes() for values in (x, normal)
            ]
            assert got == want


def test_float32_and_float64_of_one_value_draw_alike() -> None:
    x = np.random.default_rng(4).normal(size=100_000).astype(np.float32)
    for target in ("bfloat16", "float16", "float8_e5m2"):
        assert stochastic(x, target).tobytes() == stochastic(x.astype(np.float64), target).tobytes()


def test_without_a_seed_every_call_draws_anew() -> None:
    x = np.full(1000, 1 + 2.0**-8)
    one, other = (castwise.cast(x, "bfloat16", rounding="stochastic") for _ in range(2))
    assert one.tobytes() != other.tobytes()


@pytest.mark.parametrize("target", COMPLEX, ids=lambda row: row.name)
def test_complex_parts_go_to_a_neighbor(target: oracle.Format, level: str) -> None:
    source = FORMATS["complex128"]
    codes = np.random.default_rng(6).normal(size=(4000, 2)).view(np.uint64)
    got = codes_of(stochastic(array_of(codes, source), target.name), target)
    cast = oracle.cast(codes, source, target)
    assert not wrong(got, codes, source, target, *cast.candidates("ieee")).any()
    inexact = cast.place != oracle.EXACT
    moved = (got != cast.candidates("ieee")[0].codes)[inexact]
    assert target.name == "complex128" or 0.4 < moved.mean() < 0.6


@pytest.mark.parametrize("target", [*FLOATS, FORMATS["int32"]], ids=lambda row: row.name)
def test_none_is_nearest_even_for_floats_and_towards_zero_for_integers(
    target: oracle.Format,
) -> None:
    x = np.random.default_rng(7).normal(size=10_000) * 3
    named = "nearest-even" if target.kind == "float" else "towards-zero"
    want = castwise.cast(x, target.name, rounding=named)
    assert castwise.cast(x, target.name, rounding=None).tobytes() == want.tobytes()
    assert castwise.cast(x, target.name).tobytes() == want.tobytes()
