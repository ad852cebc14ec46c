"""Casts inside of `jax.jit` and the like give the bits of those outside, for every pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import castwise
import numpy as np
import pytest
import real_frameworks
from castwise.adapters.jax import cast
from oracle import FORMATS, Array
from support import REAL, array_of, codes_of

jax = real_frameworks.jax()
jnp = jax.numpy

UNCOMPILED = ["int1", "uint1", "float6_e2m3fn", "float6_e3m2fn"]
UNKNOWN = ["float8_e5m3fnu"]  # ml_dtypes has it from 0.7 on, and no release of jax yet
NAMES = [row.name for row in REAL if row.name not in UNCOMPILED + UNKNOWN]
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"overflow": "saturate"},
    {"rounding": "nearest-even"},
)


def edges(name: str) -> Array:
    """Every code of up to 8 bits, else those beside every power of two, halves, and random ones."""
    row = FORMATS[name]
    if row.bits <= 8:
        codes = np.arange(1 << row.bits)
        if row.kind == "int":
            codes -= 1 << (row.bits - 1)
        return array_of(codes.astype(row.codes), row)
    codes = np.random.default_rng(0).integers(0, 1 << (row.bits - 1), 1000, np.uint64)
    if row.kind == "float":
        powers = np.arange(-160.0, 160)
        factors = [1, 1 + 2.0**-24, 1.25, 1.5, 1.5 + 2.0**-40, 1.75, 2 - 2.0**-9]
        values = np.outer(2.0**powers, factors).ravel()
        with np.errstate(over="ignore"):
            values = np.append(values, [0, np.inf, np.nan, 464, 480, 61440, 2.0**31 - 0.5])
            codes = np.append(codes, values.astype(row.dtype).view(row.codes))
        infinity = np.array(np.inf, row.dtype).view(row.codes)
        codes = np.concatenate([codes, infinity + np.arange(-2, 3), [1, 2, 3]]).astype(np.uint64)
        codes = np.append(codes, codes | np.uint64(1 << (row.bits - 1)))
        return array_of(codes.astype(row.codes), row)
    powers = 1 << np.arange(row.bits, dtype=np.uint64)
    near = [powers + np.uint64(1), powers - np.uint64(1), powers + (powers >> np.uint64(8))]
    near += [powers + (powers >> np.uint64(8)) + np.uint64(1)]
    codes = np.concatenate([codes, powers, *near])
    return array_of(np.append(codes, 0 - codes).astype(row.codes), row)


def pairs(source: str, names: list[str], options: dict[str, Any]) -> list[str]:
    """Return the targets from a source for which options are taken in a trace."""
    if "overflow" not in options:
        return names
    floats = [name for name in names if castwise.finfo(name).kind == "float"]
    return floats if source in floats else []


def compare(source: str, names: list[str], trace: Callable[..., Any]) -> None:
    """Compare the casts of one trace, which gives them all, with those on the host."""
    values = edges(source)
    cases = [(target, options) for options in OPTIONS for target in pairs(source, names, options)]
    traced = trace(lambda x: [castwise.cast(x, target, **options) for target, options in cases])
    for (target, options), result in zip(cases, traced(jax.device_put(values)), strict=True):
        here = castwise.cast(values, target, **options)
        row = FORMATS[target]
        mask = row.codes.type((1 << row.bits) - 1)  # the rest of a byte means nothing
        differ = (codes_of(np.asarray(result), row) ^ codes_of(here, row)) & mask != 0
        assert not differ.any(), (source, target, options, values[differ])


def scanned(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: jax.lax.scan(lambda carry, each: (carry, function(each)), 0, x)[1]


SINGLE = [name for name in NAMES if not name.endswith("64")]


@pytest.mark.parametrize("source", SINGLE)
def test_every_pair_under_jit(source: str) -> None:
    compare(source, SINGLE, jax.jit)


@pytest.mark.parametrize("source", NAMES)
@pytest.mark.exhaustive
def test_every_pair_under_jit_with_64_bits(source: str) -> None:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        compare(source, NAMES, jax.jit)
    finally:
        jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("trace", [jax.vmap, scanned, jax.checkpoint])
def test_other_traces(trace: Callable[..., Any]) -> None:
    targets = ["bfloat16", "float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn", "int4", "int32"]
    compare("float32", targets, trace)


def test_a_value_that_was_rounded_stays_so() -> None:
    """XLA drops conversions to a narrower float and back as excess precision."""
    x = np.float32([1 + 2**-10, 1e-40, 3.3])
    back = jax.jit(lambda x: castwise.cast(castwise.cast(x, "bfloat16"), "float32"))(jnp.asarray(x))
    assert (
        np.asarray(back).tobytes()
        == castwise.cast(castwise.cast(x, "bfloat16"), "float32").tobytes()
    )


def test_gradients() -> None:
    x = jnp.asarray([0.3, -500.0, 448.0, 2.0])
    for options, expected in (({}, [1, 1, 1, 1]), ({"overflow": "saturate"}, [1, 0, 1, 1])):

        def loss(x: Any, options: Any = options) -> Any:
            return cast(x, "float8_e4m3fn", **options).astype(np.float32).sum()

        assert jax.jit(jax.grad(loss))(x).tolist() == expected
        assert jax.jvp(loss, (x,), (jnp.ones(4),))[1] == sum(expected)
    assert jax.grad(lambda x: x * cast(x, "int8").astype(np.float32))(2.5) == 2


@pytest.mark.parametrize("name", UNCOMPILED)
def test_what_xla_does_not_compile_is_refused_by_name(name: str) -> None:
    try:
        stored = jax.device_put(np.zeros(2, castwise.finfo(name).dtype))
    except (TypeError, jax.errors.JaxRuntimeError):
        pytest.skip("this jax does not have it")
    with pytest.raises(TypeError, match=f"dtype has the dtype {name}"):
        jax.jit(lambda x: castwise.cast(x, name))(jnp.ones(2))
    with pytest.raises(TypeError, match=f"array has the dtype {name}"):
        jax.jit(lambda x: castwise.cast(x, "float32"))(stored)


def test_wrong_options_say_what_is_wrong() -> None:
    for options, error, words in (
        ({"overflow": "clamp"}, ValueError, 'overflow="clamp"'),
        ({"overflw": "saturate"}, TypeError, "overflw"),
        ({"scale": 2.0}, ValueError, "scale=2.0 is for arrays on one CPU device"),
        ({"nan": "zero"}, ValueError, "nan='zero' is for"),
        ({"rounding": "stochastic", "seed": 1}, ValueError, "rounding='stochastic' is for"),
        ({"threads": 2}, ValueError, "threads=2 is for"),
    ):
        with pytest.raises(error, match=words):
            jax.jit(lambda x, options=options: castwise.cast(x, "bfloat16", **options))(jnp.ones(2))
