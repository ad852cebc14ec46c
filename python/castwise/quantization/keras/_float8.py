"""Float8 by delayed scaling."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from castwise import _core
from castwise._core import cast, finfo
from castwise.loss_scale import DelayedScaling
from castwise.quantization.keras._steps import (
    Array,
    Steps,
    array_of,
    float_dtype,
    floats_of,
    undisturbed,
)


@undisturbed
def compute_float8_scale(
    amax: ArrayLike, scale: ArrayLike, dtype_max: ArrayLike, margin: int = 0
) -> Array:
    """Return the next scale of delayed scaling: what codes are multiplied by to be decoded.

    Parameters
    ----------
    amax, scale : array_like
        The largest magnitude of a history, and the scale of before, which stays if `amax` is 0,
        infinite or NaN.
    dtype_max : number
        The largest value of the float8: 448, 57344.
    margin : int
        Powers of two to leave above `amax`.

    Returns
    -------
    ndarray
        ``amax / dtype_max * 2 ** margin``, computed by reciprocals, or `scale`.

    """
    amaxes, before = floats_of("amax", amax), floats_of("scale", scale)
    limit_dtypes = [floats_of("dtype_max", dtype_max).dtype] if hasattr(dtype_max, "dtype") else []
    step, scale_step = Steps(amaxes.dtype, *limit_dtypes), Steps(before.dtype)
    factor = step(step(step.of(dtype_max) / step.of(amaxes)) / step.of(2.0**margin))
    result = Steps(step.dtype, scale_step.dtype)
    is_used = (amaxes > 0) & np.isfinite(amaxes)
    return result.stored(1 / np.where(is_used, factor, scale_step(1 / scale_step.of(before))))


@undisturbed
def compute_float8_amax_history(x: ArrayLike, amax_history: ArrayLike) -> Array:
    """Return a history with the largest magnitude of an array: the newest first, the oldest second.

    Parameters
    ----------
    x : array_like
        Of a float dtype, not empty.
    amax_history : array_like
        (length,), of 1 or more.

    Returns
    -------
    ndarray
        Of the shape and dtype of `amax_history`, which is not changed.

    Raises
    ------
    ValueError
        One of them is empty, or not of a float dtype.

    """
    values, history = (
        floats_of("x", x, in_numpy=True),
        floats_of("amax_history", amax_history, in_numpy=True),
    )
    for name, array in (("x", values), ("amax_history", history)):
        if not array.size:
            raise ValueError(f"{name} has shape {array.shape}; give at least one number.")
    amax = _core.block_amax(np.atleast_2d(values))
    after = np.roll(history, -1)
    after[0] = cast(np.float64(amax), history.dtype)
    return after


@undisturbed
def quantize_and_dequantize(
    inputs: ArrayLike, scale: ArrayLike, quantized_dtype: object, compute_dtype: object
) -> Array:
    """Divide by a scale, round to a float8, and multiply by the scale.

    Parameters
    ----------
    inputs : array_like
        Of a float dtype. What is beyond the range of the float8 gets its largest value.
    scale : array_like
        A number, or what can be broadcast.
    quantized_dtype : dtype
        "float8_e4m3fn", "float8_e5m2", or another float.
    compute_dtype : dtype
        Of the steps and of the result.

    Returns
    -------
    ndarray
        Of the shape of `inputs`.

    Raises
    ------
    ValueError
        An array or a dtype is not a float, or not one that Keras knows.

    """
    x = floats_of("inputs", inputs)
    codes_dtype = float_dtype("quantized_dtype", quantized_dtype)
    then = Steps(float_dtype("compute_dtype", compute_dtype))
    step, factor = Steps(x.dtype, then.dtype), then.of(array_of("scale", scale))
    if step.dtype == then.dtype == np.float32 and codes_dtype.itemsize == 1 and _is_one(factor, x):
        machine = DelayedScaling(1, dtype=codes_dtype, preset="keras")
        state = machine.state_dict() | {"scale": float(factor.reshape(()))}
        machine = machine.with_state(state)
        return machine.dequantize(machine.quantize(x)[0])
    limit = then.of(finfo(codes_dtype).max)
    codes = cast(np.clip(step(step.of(x) / factor), -limit, limit), codes_dtype)
    return then.stored(then.of(codes) * factor)


def _is_one(factor: Array, x: Array) -> bool:
    """Tell whether a scale is one positive number, which changes no shape."""
    return factor.size == 1 and factor.ndim <= x.ndim and bool(0 < factor.reshape(()) < math.inf)
