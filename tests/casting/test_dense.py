"""Long dense arrays, whose results are stored otherwise than those of short ones."""

from __future__ import annotations

import itertools
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest
from oracle import FORMATS, ROUNDINGS
from support import LEVELS, at_level

FAST = [level for level in LEVELS if level != "portable"]

PAIRS = [
    ("uint8", "int8"),
    ("int4", "uint2"),
    ("int64", "int8"),
    ("int64", "bool"),
    ("uint64", "int16"),
    ("float64", "bool"),
    ("int16", "int4"),
    ("uint16", "int8"),
    ("int64", "int32"),
    ("int64", "float32"),
    ("uint64", "float32"),
    ("bool", "float32"),
    ("uint2", "float64"),
    ("int32", "bfloat16"),
    ("uint32", "float8_e4m3"),
    ("int64", "float16"),
    ("uint64", "bfloat16"),
    ("float32", "int8"),
    ("float32", "uint2"),
    ("float32", "int32"),
    ("float32", "uint64"),
    ("float32", "bool"),
    ("float32", "float64"),
    ("float64", "float32"),
    ("float64", "uint16"),
    ("float64", "int64"),
    ("float64", "float16"),
    ("float64", "float8_e5m2"),
    ("bfloat16", "int16"),
    ("bfloat16", "uint32"),
    ("bfloat16", "float64"),
    ("float16", "int32"),
    ("float64", "complex128"),
    ("int16", "complex64"),
    ("int8", "complex64"),
    ("uint32", "complex64"),
    ("int64", "complex64"),
    ("uint8", "complex128"),
    ("float64", "complex64"),
    ("float8_e5m2", "complex64"),
    ("bfloat16", "complex128"),
    ("complex64", "complex128"),
]

# Around the limits of integers, of float32 and of its normal numbers; ties of short mantissas, and
# next to them.
POWERS = [-1074, -1022, -160, -150, -149, -148, -133, -127, -126, -25, -14, -9, -2, 0, 1]
POWERS += [*range(5, 17), 23, 24, 31, 32, 52, 53, 62, 63, 64, 65, 127, 128, 129, 1023]
EDGES = [
    np.nextafter(sign * 2.0**power * (1 + tail), toward)
    for power, sign, tail in itertools.product(POWERS, (1, -1), (0, 2**-8, 2**-11, 3 * 2**-4))
    for toward in (0.0, sign * 2.0**power * (1 + tail), sign * np.inf)
]
HARD = np.array([*EDGES, 0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, -0.5, 0.5, 127.9, 255.9])
# A NaN whose payload is in its low bits alone.
HARD = np.append(HARD, np.array([0x7FF0000000000001, 0xFFF0000000000001], np.uint64).view(float))


def dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def source(name: str, count: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    bits = castwise.finfo(name).bits
    codes = rng.integers(0, 256, (count, dtype(name).itemsize), np.uint8)
    if bits < 8:
        codes &= 2**bits - 1
    return codes.reshape(-1).view(dtype(name))


@pytest.mark.parametrize("level", FAST)
@pytest.mark.parametrize(("from_", "to"), PAIRS)
def test_every_length_and_alignment(from_: str, to: str, level: str) -> None:
    x = source(from_, 9000)
    size = dtype(to).itemsize
    with at_level("portable"):
        expected = [castwise.cast(x[i : i + 1], dtype(to)).tobytes() for i in range(1500)]
        expected += [castwise.cast(x[1500:], dtype(to)).tobytes()]
    whole = b"".join(expected)
    for first, skew in [(0, 0), (1, 1), (3, 2 * size), (7, 33), (5, 64 - size)]:
        for count in (1, 255, 1025, 4095, 4096, 4097, 5900, 8900):
            memory = np.full(count * size + 256, 0xA5, np.uint8)
            start = 64 + skew - memory.ctypes.data % 64
            out = memory[start : start + count * size].view(dtype(to))
            with at_level(level):
                castwise.cast(x[first : first + count], out=out)
            assert out.tobytes() == whole[first * size : (first + count) * size]
            assert (memory[:start] == 0xA5).all()
            assert (memory[start + count * size :] == 0xA5).all()


@pytest.mark.parametrize("level", FAST)
@pytest.mark.parametrize(
    ("from_", "to"),
    [
        ("float32", "int32"),
        ("int64", "float64"),
        ("int64", "complex64"),
        ("float64", "complex64"),
        ("uint8", "int4"),
    ],
)
def test_in_place(from_: str, to: str, level: str) -> None:
    x = source(from_, 5001)
    with at_level("portable"):
        expected = castwise.cast(x, dtype(to)).tobytes()
    with at_level(level):
        castwise.cast(x, out=x.view(dtype(to)))
    assert x.tobytes() == expected


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.thinned(2)
@pytest.mark.parametrize("from_", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(
    "to",
    ["int4", "uint2", "bool", "float64", "float32"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)],
)
def test_one_hard_value_among_easy_ones(from_: str, to: str, level: str) -> None:
    with np.errstate(all="ignore"):
        hard = HARD.astype(dtype(from_))
    with at_level(level):
        alone = [castwise.cast(hard[i : i + 1], dtype(to)).tobytes() for i in range(len(hard))]
        for i, value in enumerate(hard):
            block = np.ones(300, dtype(from_))
            block[i % 300] = value
            result = castwise.cast(block, dtype(to))
            assert result[i % 300 : i % 300 + 1].tobytes() == alone[i], value
            block[i % 300] = 1
            rest = np.delete(result, i % 300).tobytes()
            assert rest == np.delete(castwise.cast(block, dtype(to)), i % 300).tobytes()


@pytest.mark.parametrize("level", FAST)
@pytest.mark.parametrize(
    "rounding", [rounding for rounding in ROUNDINGS if rounding != "stochastic"]
)
@pytest.mark.parametrize(
    "to", ["bfloat16", "float16", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn"]
)
def test_float64_to_short_floats(to: str, rounding: str, level: str) -> None:
    x = np.concatenate([HARD, source("float64", 4000)])
    rules = ("keep", "zero") if FORMATS[to].has_zero else ("keep",)
    for overflow, nan in itertools.product(("ieee", "saturate"), rules):
        options: dict[str, Any] = {"rounding": rounding, "overflow": overflow, "nan": nan}
        with at_level("portable"):
            expected = castwise.cast(x, dtype(to), **options).tobytes()
        with at_level(level):
            assert castwise.cast(x, dtype(to), **options).tobytes() == expected
            alone = [
                castwise.cast(x[i : i + 1], dtype(to), **options).tobytes() for i in range(200)
            ]
        assert b"".join(alone) == expected[: len(b"".join(alone))]


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("from_", "to"),
    [
        ("float64", "float32"),
        ("bfloat16", "int32"),
        ("float16", "int32"),
        ("int8", "float32"),
        ("uint16", "float64"),
        ("int32", "complex64"),
        ("float32", "complex64"),
        ("float64", "complex128"),
        ("bool", "complex64"),
        ("int64", "complex128"),
        ("float32", "complex128"),
    ],
)
def test_results_that_go_past_the_caches(from_: str, to: str) -> None:
    x = source(from_, (1 << 22) + 77)
    result = castwise.cast(x, dtype(to), threads=1)
    again = castwise.cast(x, dtype(to), threads=2)
    parts = [castwise.cast(part, dtype(to)).tobytes() for part in np.array_split(x, 70)]
    assert result.tobytes() == again.tobytes() == b"".join(parts)
