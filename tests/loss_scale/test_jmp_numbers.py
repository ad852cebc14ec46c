"""jmp's DynamicLossScale with every kind of number, step by step beside jmp's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from castwise.compat import jmp
from hypothesis import given, settings
from hypothesis import strategies as st
from originals import library

jnp: Any = library("jax.numpy")
original: Any = library("jmp")

FLAGS = [True, True, False, *[True] * 9, False, False, False]
INTS = [1, 2, 3, np.int64(2), np.int8(3), np.array(2), jnp.int32(2), True]
FLOATS = [5.0, 2.5, 1.5, np.float64(2), np.float32(2.5), np.array(3.0), jnp.float32(2)]


def assert_equal_steps(flags: list[bool] = FLAGS, **numbers: Any) -> None:
    theirs = original.DynamicLossScale(**numbers)
    ours = jmp.DynamicLossScale(**numbers)
    for flag in flags:
        theirs, ours = theirs.adjust(jnp.asarray(flag)), ours.adjust(flag)
        assert ours.loss_scale.dtype == theirs.loss_scale.dtype
        np.testing.assert_array_equal(ours.loss_scale, np.asarray(theirs.loss_scale))
        np.testing.assert_array_equal(ours.counter, np.asarray(theirs.counter))
        assert ours.counter.dtype.kind == np.asarray(theirs.counter).dtype.kind


@pytest.mark.parametrize("period", [*INTS, *FLOATS, -2, math.inf, math.nan], ids=repr)
def test_periods(period: Any) -> None:
    assert_equal_steps(loss_scale=jnp.float32(10), period=period)


@pytest.mark.parametrize("factor", [*INTS, *FLOATS, 1.1, np.float64(1.1), 0.5, -2, 0], ids=repr)
def test_factors(factor: Any) -> None:
    assert_equal_steps(loss_scale=jnp.float32(10), period=2, factor=factor)


@pytest.mark.parametrize("counter", [*INTS, *FLOATS, 0, 0.0], ids=repr)
def test_counters(counter: Any) -> None:
    assert_equal_steps(loss_scale=jnp.float32(10), period=3, counter=counter)


@pytest.mark.parametrize("minimum", [*INTS, *FLOATS, 0, 0.0, 1.1, np.float16(1.1)], ids=repr)
@pytest.mark.filterwarnings("ignore:Expected floating type:UserWarning")
@pytest.mark.filterwarnings("ignore:min_loss_scale has dtype:UserWarning")
def test_minima(minimum: Any) -> None:
    assert_equal_steps(loss_scale=jnp.float32(10), period=2, min_loss_scale=minimum)


@pytest.mark.parametrize("scale", [10.0, np.float32(10), np.float64(0.1), np.array(10.0)], ids=repr)
def test_scales(scale: Any) -> None:
    assert_equal_steps(loss_scale=scale, period=2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scales_of_16_bits(dtype: str) -> None:
    make = getattr(jnp, dtype)
    for factor in (2, 1.1, 3):
        numbers = {"period": 2, "factor": factor, "min_loss_scale": make(1)}
        assert_equal_steps(loss_scale=make(40000), **numbers)


@settings(max_examples=100)
@given(
    flags=st.lists(st.booleans(), max_size=12),
    scale=st.floats(1.0, 2.0**127, width=32),
    period=st.integers(1, 5) | st.floats(0.5, 5, width=32),
    factor=st.integers(2, 5) | st.floats(1.0, 10, width=32),
    counter=st.integers(0, 6) | st.floats(0, 6, width=32),
)
def test_numbers_of_any_size(
    flags: list[bool], scale: float, period: float, factor: float, counter: float
) -> None:
    numbers = {"period": period, "factor": factor, "counter": jnp.asarray(counter)}
    assert_equal_steps(flags, loss_scale=jnp.float32(scale), **numbers)


def test_periods_beyond_32_bits() -> None:
    """Periods for which jmp raises OverflowError."""
    scale = jmp.DynamicLossScale(np.float32(8), period=2**40).adjust(True)
    assert (float(scale.loss_scale), int(scale.counter)) == (8.0, 1)
