"""Codes that are products with a scale: that of the largest magnitude along axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from castwise import _core
from castwise._core import cast
from castwise.quantization.keras._steps import (
    BFLOAT16,
    EPSILON,
    INT8,
    Array,
    Steps,
    code_dtype,
    floats_of,
    undisturbed,
)


@undisturbed
def abs_max_quantize(  # noqa: PLR0917 - as Keras
    inputs: ArrayLike,
    axis: int | Sequence[int] | None,
    value_range: Sequence[float] = (-127, 127),
    dtype: object = INT8,
    epsilon: float = EPSILON,
    to_numpy: bool = False,
) -> tuple[Array, Array]:
    """Quantise by the largest magnitude along axes: codes are products with the scale.

    Parameters
    ----------
    inputs : array_like
        Of a float dtype, any shape.
    axis : int, sequence of int, or None
        Along which elements share a scale; None: all do.
    value_range : (number, number)
        The smallest and the largest code.
    dtype : dtype
        Of the codes; it holds `value_range`.
    epsilon : float
        What is added to the largest magnitude.
    to_numpy : bool
        Keras' other way to compute, which takes the steps of bfloat16 in float32, and float64 as
        it is.

    Returns
    -------
    codes, scale : ndarray
        Codes of the shape of `inputs`. Scales of its dtype, of length 1 along `axis`; codes are
        divided by them to be decoded.

    Raises
    ------
    ValueError
        `inputs` is not of float16, bfloat16, float32 or float64, or is empty; `dtype` does not hold
        `value_range`; an axis is out of bounds.

    """
    x = floats_of("inputs", inputs, in_numpy=to_numpy)
    low, high, codes_dtype = code_dtype(value_range, dtype)
    axes = tuple(axis) if isinstance(axis, list | tuple) else axis
    if isinstance(axes, tuple) and len(axes) == 1:
        (axes,) = axes
    usual = (x.dtype.name, codes_dtype, low, high, epsilon)
    is_usual = usual == ("float32", INT8, -127, 127, EPSILON) and x.size
    if is_usual and isinstance(axes, int) and -x.ndim <= axes < x.ndim:
        codes, scale = _in_one_pass(x, axes)
        if not np.isnan(scale).any():  # which stands for what is not finite
            return codes, scale
    step = Steps(np.float32 if to_numpy and x.dtype.name == BFLOAT16 else x.dtype)
    values = step.of(x)
    largest, smallest = values.max(axes, keepdims=True), values.min(axes, keepdims=True)
    amax = np.abs(np.maximum(largest, -smallest))
    scale = step(step.of(high) / step(amax + step.of(epsilon)))
    codes = np.clip(np.rint(step(values * scale)), low, high)
    return cast(step(codes), codes_dtype), cast(scale, x.dtype)


def _in_one_pass(x: Array, axis: int) -> tuple[Array, Array]:
    """Quantise float32 to int8 along an axis; a NaN among the scales means: no result."""
    shape = list(x.shape)
    shape[axis] = 1
    codes, scale = np.empty(x.shape, np.int8), np.empty(shape, np.float32)
    order = [*range(x.ndim)]
    order.append(order.pop(axis))
    _core.encode_blocks(
        *(np.atleast_2d(array.transpose(order)) for array in (x, codes, scale)),
        scheme="int8_channel",
        recipe="keras",
        block=(1, 0),
        nonfinite="nan",
    )
    return codes, scale
