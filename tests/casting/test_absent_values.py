"""What a format cannot hold: zero, a sign, infinity, NaN; the same by every door."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import castwise
import numpy as np
import oracle
import pytest
from castwise import checkpoint
from comparison import compare
from oracle import DETERMINISTIC, FORMATS, OVERFLOWS, Array, Format
from support import AVAILABLE, REAL

NANS = ("keep", "zero", "raise")
SOURCES = ("float64", "float32", "bfloat16", "int8")


def values_for(source: Format, target: Format) -> Array:
    """Give the codes of zeros, both signs, both infinities, NaN, and the ends of the target."""
    part = oracle.component(target)
    if source.kind == "int":
        return np.array([0, 1, 2, 3, 127, 128, 255, 254], source.codes)
    largest, smallest = 2.0**127, 2.0**-127
    if part.kind == "float":
        largest, smallest = (
            (
                float(
                    castwise.cast(np.array([code], part.code_dtype).view(target.dtype), "float64")[
                        0
                    ]
                )
                for code in (part.largest, 1)
            )
            if part is target
            else (largest, smallest)
        )
    numbers = [0.0, 1.0, 3.0, 0.5, 1e-30, smallest, smallest / 4, largest, 2 * largest, np.inf]
    with np.errstate(over="ignore"):
        signed = np.array([*numbers, *np.negative(numbers), np.nan, -np.nan])
        return castwise.cast(signed, source.name).view(source.codes)


@pytest.mark.thinned(7)
@pytest.mark.parametrize("target", REAL, ids=lambda row: row.name)
@pytest.mark.parametrize("source", SOURCES)
def test_every_option_is_as_the_oracle_says(source: str, target: Format) -> None:
    """Refused where the oracle refuses, and by name where a format has no zero for NaN."""
    codes = values_for(FORMATS[source], target)
    cast = oracle.cast(codes, FORMATS[source], target)
    for rounding, overflow, nan in product(DETERMINISTIC, OVERFLOWS, NANS):
        compare(cast, codes, FORMATS[source], target, rounding=rounding, overflow=overflow, nan=nan)


WITHOUT_ZERO = [row for row in AVAILABLE if not oracle.component(row).has_zero]
X = np.array([1.0, np.nan, 0.0, -2.0], np.float32)


def by_file(folder: Any, **options: Any) -> Array:
    checkpoint.save(folder / "in.npz", {"w": X}, overwrite=True)
    target = options.pop("dtype")
    out = folder / "out.safetensors"
    checkpoint.cast_file(folder / "in.npz", out, target, overwrite=True, **options)
    return checkpoint.load(folder / "out.safetensors")["w"]


def doors(folder: Any, target: str, options: dict[str, Any]) -> dict[str, Callable[[], Array]]:
    out = np.zeros(4, FORMATS[target].dtype)
    return {
        "cast": lambda: castwise.cast(X, target, **options),
        "large": lambda: castwise.cast(np.tile(X, 50_000), target, **options)[:4],
        "strided": lambda: castwise.cast(np.repeat(X, 2)[::2], target, **options),
        "list": lambda: castwise.cast([1.0, np.nan, 0.0, -2.0], target, **options),
        "out": lambda: castwise.cast(X, out=out, **options),
        "report": lambda: castwise.cast(X, target, report=True, **options)[0],
        "scaled": lambda: castwise.cast(X, target, scale=1.0, **options),
        "caster": lambda: castwise.caster("float32", target, **options)(X),
        "tree": lambda: castwise.cast_tree([X], target, **options)[0],
        "file": lambda: by_file(folder, dtype=target, **options),
    }


def outcome(door: Callable[[], Array]) -> bytes | str:
    """Return the codes, or the class and the text of what is refused, without its place."""
    try:
        return door().tobytes()
    except (ValueError, OverflowError) as error:
        return f"{type(error).__name__} {str(error).rpartition(': ')[2]}"


@pytest.mark.parametrize("target", ["float8_e8m0fnu", "float8_e4m3fn", "float4_e2m1fn"])
def test_every_door_has_the_same_rule(target: str, tmp_path: Any) -> None:
    for overflow, nan in product(OVERFLOWS, NANS):
        options = {"overflow": overflow, "nan": nan}
        found = {name: outcome(door) for name, door in doors(tmp_path, target, options).items()}
        expected = found.pop("cast")
        for name, result in found.items():
            if isinstance(expected, str):
                assert isinstance(result, str), (name, options)
                assert expected.split()[0] == result.split()[0], (name, options)
            else:
                assert result == expected, (name, options)
        refused = isinstance(expected, str) and "has no zero" in expected
        assert refused == (nan == "zero" and not FORMATS[target].has_zero), options


@pytest.mark.parametrize("target", WITHOUT_ZERO, ids=lambda row: row.name)
@pytest.mark.parametrize("x", [[], [1.0], np.arange(3)], ids=str)
def test_zero_for_nan_is_refused_whatever_the_values(target: Format, x: Any, level: str) -> None:
    for overflow in OVERFLOWS:
        with pytest.raises(ValueError, match=rf'nan="zero" is not for {target.name}, which has no'):
            castwise.cast(x, target.name, nan="zero", overflow=overflow)


def test_what_is_beyond_a_format_is_of_overflow_not_of_nan() -> None:
    """nan="raise" is about NaN among the sources."""
    for target, value in (
        ("float8_e8m0fnu", 0.0),
        ("float8_e8m0fnu", -1.0),
        ("float8_e4m3fn", 1e6),
    ):
        assert np.isnan(castwise.cast([value], target, nan="raise").astype(float)).all()
        with pytest.raises(OverflowError, match=f"beyond the range of {target}"):
            castwise.cast([value], target, nan="raise", overflow="raise")
        saturated = castwise.cast([value], target, nan="raise", overflow="saturate")
        assert saturated.astype(float).tolist() == [448.0 if value > 0 else 2.0**-127]
        with pytest.raises(ValueError, match="NaN at flat index 0"):
            castwise.cast([np.nan], target, nan="raise")
