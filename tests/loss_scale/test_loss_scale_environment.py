"""Numbers that the host's floating-point environment would flush reach the core as they are."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest
from castwise.loss_scale import (
    DelayedScaling,
    DynamicLossScale,
    FixedLossScale,
    LossScaler,
    agree,
    get,
    merge,
    pack,
    unscale,
)
from float_environment import DENORMALS_ARE_ZERO, DOWN, FLUSH_TO_ZERO, SUPPORTED, mxcsr

# Made in the default environment, because numpy makes them.
TINY = np.float32(1e-40)
SMALL, SMALL_DOUBLE = np.array([3e-40, 1e-38], np.float32), np.array([3e-40, 1e-38])
REDUCED = np.array([0, -1e-40], np.float32)
POWER = np.float32(2.0**-127)
KERAS = DelayedScaling(2, preset="keras")


def small_scale() -> DelayedScaling:
    """One whose stored scale is a subnormal float32."""
    return KERAS.with_state({"preset": "keras", "scale": 1e-40, "amax_history": [0, 0]})


CALLS: dict[str, Callable[[], Any]] = {
    "next": lambda: KERAS.next(TINY).next(0.0).amax_history,
    "next refuses": lambda: KERAS.next(-TINY),
    "next of float64 refuses": lambda: KERAS.next(-1e-310),
    "quantize": lambda: small_scale().quantize(SMALL)[0],
    "quantize float64": lambda: small_scale().quantize(SMALL_DOUBLE)[0],
    "pack scalars": lambda: pack(True, [TINY, 1e-41, 2.0]),
    "pack an array": lambda: pack(True, np.array([1e-40, 1.0])),
    "pack refuses": lambda: pack(True, [-TINY]),
    "merge": lambda: merge(np.array([0.0, 1e-40]))[1],
    "merge refuses": lambda: merge(REDUCED),
    "agree": lambda: agree(True, [TINY], reduce=lambda vector: [0.0, TINY]),
    "a preset": lambda: DynamicLossScale(TINY, preset="keras"),
    "a fixed scale": lambda: FixedLossScale(TINY),
    "a factor": lambda: DynamicLossScale(backoff_factor=1e-310),
    "unscale": lambda: unscale([np.float32(1)], POWER)[0][0],
}


def told(call: Callable[[], Any]) -> Any:
    """Give what a call returns or raises, for a comparison in the default environment."""
    try:
        return call()
    except ValueError as error:
        return error


def shown(outcome: Any) -> str:
    return outcome.tobytes().hex() if isinstance(outcome, np.ndarray) else repr(outcome)


@pytest.mark.skipif(not SUPPORTED, reason="MXCSR is x86-64's")
@pytest.mark.parametrize("name", CALLS)
def test_the_environment_changes_nothing(name: str) -> None:
    wanted = shown(told(CALLS[name]))
    assert name.endswith("refuses") == wanted.startswith("ValueError")
    for bits in (FLUSH_TO_ZERO | DENORMALS_ARE_ZERO, DOWN):
        with mxcsr(bits):
            got = told(CALLS[name])
        assert shown(got) == wanted


SCALARS = [
    ml_dtypes.bfloat16(4),
    ml_dtypes.float8_e5m2(4),
    np.float16(4),
    np.int8(4),
    np.array(4.0, ml_dtypes.bfloat16),
    Fraction(4),
]


@pytest.mark.parametrize("scale", SCALARS, ids=repr)
def test_every_real_scalar_is_a_scale(scale: Any) -> None:
    assert unscale([8.0], scale)[0][0] == 2.0
    assert get(scale) == FixedLossScale(4.0)
    assert LossScaler(scale).scale == DynamicLossScale(scale).scale == 4.0


@pytest.mark.parametrize(
    "scale", [np.True_, np.array(True), np.ones(1), np.array([1.0, 2.0]), np.complex64(1), "8", 2j]
)
def test_what_is_not_a_real_scalar(scale: Any) -> None:
    for call in (FixedLossScale, DynamicLossScale, lambda given: unscale([8.0], given)):
        with pytest.raises(TypeError, match=r"scale=.* is not valid; use a number"):
            call(scale)
    with pytest.raises((TypeError, ValueError), match=r"loss_scale=.* is not valid; use"):
        get(scale)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float16"])
def test_float64_is_divided_in_float64(dtype: str) -> None:
    """As Keras does where the compute dtype is float64, without its second rounding."""
    x = np.random.default_rng(0).standard_normal(20_000) * np.exp2(np.arange(20_000) % 17 - 8)
    scaling = DelayedScaling(1, dtype=dtype).next(3.7)
    codes, amax = scaling.quantize(x)
    assert amax == np.abs(x).max()
    wanted = castwise.cast(x / scaling.scale, dtype, overflow="saturate")
    np.testing.assert_array_equal(codes.astype(np.float64), wanted.astype(np.float64))
    narrow = scaling.quantize(x.astype(np.float32))[0]
    wanted = castwise.cast(
        x.astype(np.float32) / np.float32(scaling.scale), dtype, overflow="saturate"
    )
    np.testing.assert_array_equal(narrow.astype(np.float64), wanted.astype(np.float64))


def test_the_first_scale_is_kept_as_it_is_used() -> None:
    """Ours in float32, as the scale itself; of presets, as the originals' configs keep it."""
    third = float(np.float32(1 / 3))
    scale = DynamicLossScale(1 / 3, minimum=0.1, maximum=1e7 / 3)
    assert scale.scale == scale.initial_scale == scale.get_config()["initial_scale"] == third
    assert scale.minimum == scale.get_config()["minimum"] == float(np.float32(0.1))
    assert f"initial_scale={third}," in repr(scale)
    assert f"scale={third}," in repr(scale).split(" at ")[1]
    assert DynamicLossScale.from_config(scale.get_config()) == scale
    preset = DynamicLossScale(1 / 3, preset="torch")
    assert preset.scale == third
    assert preset.initial_scale == preset.get_config()["initial_scale"] == 1 / 3
    assert DynamicLossScale.from_config(preset.get_config()) == preset
