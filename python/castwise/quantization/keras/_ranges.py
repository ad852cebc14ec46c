"""Scales and zero points of the range from the smallest value to the largest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from castwise._core import cast, finfo
from castwise._standard_dtype import standardize_dtype
from castwise.quantization.keras._steps import (
    BFLOAT16,
    EPSILON,
    INT8,
    MATRIX,
    Array,
    Steps,
    array_of,
    code_dtype,
    float_dtype,
    floats_of,
    undisturbed,
)


@undisturbed
def compute_quantization_parameters(
    x: ArrayLike | None,
    *,
    bits: int,
    symmetric: bool = False,
    per_channel: bool = False,
    group_size: int = -1,
    compute_dtype: object = "float32",
    epsilon: float = 0.0,
    signed: bool = False,
) -> tuple[Array, Array, Array]:
    """Return scales and zero points for the rows of a matrix, or for groups of their elements.

    Parameters
    ----------
    x : array_like
        (outputs, inputs, ...), of a float dtype, not empty.
    bits : int
        Of a code.
    symmetric : bool
        The range is the same on both sides of 0.
    per_channel : bool
        Each row has its own scale; else all have the same one.
    group_size : int
        With `per_channel`, elements of a group along axis 1; -1: a whole row.
    compute_dtype : dtype
        Of `maxq`, and of scales if it is wider than that of `x`.
    epsilon : float
        What is added to the range.
    signed : bool
        Codes from ``-2 ** (bits - 1)``, and zero points of int8, limited to what is a code; else
        codes from 0, and zero points of uint8, which wrap if the values of a group are far from 0.

    Returns
    -------
    scale, zero : ndarray
        (outputs, groups).
    maxq : ndarray
        ``2 ** bits - 1``, of `compute_dtype`.

    Raises
    ------
    ValueError
        `x` is None, is empty, has fewer than two axes, or is not of a float dtype.

    """
    if x is None:
        raise ValueError("x=None is not valid; give a matrix.")
    array = floats_of("x", x)
    if array.ndim < MATRIX or not array.size:
        raise ValueError(f"x has shape {array.shape}; give two axes or more, and elements.")
    input_step, computed = Steps(array.dtype), float_dtype("compute_dtype", compute_dtype)
    step, values, rows = Steps(input_step.dtype, computed), input_step.of(array), len(array)
    if per_channel and 0 < group_size < array.shape[1]:
        values = _groups(values, 1, group_size)
        smallest, largest = values.min(2), values.max(2)
    else:
        values = values.reshape(rows if per_channel else 1, -1)
        smallest, largest = values.min(1, keepdims=True), values.max(1, keepdims=True)
    if symmetric:
        largest = np.maximum(np.abs(smallest), largest)
        smallest = np.where(smallest < 0, -largest, smallest)
    is_one = smallest == largest
    smallest = np.where(is_one, input_step(smallest - input_step.of(1)), smallest)
    largest = np.where(is_one, input_step(largest + input_step.of(1)), largest)
    reach = input_step(largest - smallest)
    if epsilon > 0:
        reach = input_step(reach + input_step.of(epsilon))
    maxq = np.array(2**bits - 1, finfo(standardize_dtype(compute_dtype)).dtype)
    scale = step(reach / step.of(maxq))
    scale = np.where(scale <= 0, step.of(1e-8), scale)
    half = 1 << (bits - 1)
    zero = np.full_like(scale, half) if symmetric else np.rint(step(-smallest / scale))
    if signed:
        zero = np.clip(step(zero - half), -half, half - 1)
    integers = cast(zero, np.int8) if signed else _wrapped(zero)
    shape = (rows, scale.shape[1])
    return (
        step.stored(np.broadcast_to(scale, shape)),
        np.broadcast_to(integers, shape).copy(),
        maxq,
    )


def _wrapped(zero: Array) -> Array:
    """Return the lowest 8 bits of integers; 0 for those beyond an int32, as on x86."""
    beyond = 2.0**31
    return cast(cast(np.where(np.abs(zero) < beyond, zero, 0), np.int64), np.uint8)


@undisturbed
def abs_max_quantize_grouped_with_zero_point(  # noqa: PLR0917 - as Keras
    inputs: ArrayLike,
    block_size: int,
    value_range: Sequence[int] = (-8, 7),
    dtype: object = INT8,
    epsilon: float = EPSILON,
    to_numpy: bool = False,
) -> tuple[Array, Array, Array]:
    """Quantise a matrix in groups of rows, each with a scale and a zero point for every column.

    Zero points are limited to `value_range`, so a group whose values have one sign is decoded to
    other values, in Keras too.

    Parameters
    ----------
    inputs : array_like
        (rows, columns), of a float dtype.
    block_size : int
        1 or more: rows of a group. The last one is filled up with zeros.
    value_range, dtype, epsilon
        As for `abs_max_quantize`; `epsilon` is added to the range of a group.
    to_numpy : bool
        Keras' other way to compute: a group of equal values has the scale of `epsilon`, not of the
        range from one below to one above, and the last group's zeros count even if it is the only
        one. The steps of bfloat16 are taken in float32, and float64 as it is.

    Returns
    -------
    codes, scale, zero_point : ndarray
        (rows, columns) of `dtype`; (groups, columns) of the dtype of `inputs`, and of int8. Codes
        are decoded as ``(codes - zero_point) * scale``.

    Raises
    ------
    ValueError
        As for `abs_max_quantize`; `inputs` is not a matrix; `block_size` is less than 1.

    """
    x = floats_of("inputs", inputs, in_numpy=to_numpy)
    low, high, codes_dtype = code_dtype(value_range, dtype)
    if x.ndim != MATRIX:
        raise ValueError(f"inputs has shape {x.shape}; give a matrix, (rows, columns).")
    if block_size < 1:
        raise ValueError(f"block_size={block_size!r} is not valid; use 1 or more.")
    step = input_step = Steps(x.dtype)
    groups = _groups(step.of(x), 0, block_size)
    if to_numpy:
        smallest, largest = groups.min(1), groups.max(1)
        step = Steps(np.float32) if x.dtype.name == BFLOAT16 else input_step
        reach = step(input_step(largest - smallest) + step.of(epsilon))
        scale = step(reach / step.of(high - low))
        zero = step(step(np.rint(step(-smallest / scale))) + step.of(low))
        zero = step(np.clip(zero, low, high))
    else:
        stored, codes_of_zero, _ = compute_quantization_parameters(
            x.T,
            bits=int(math.log2(high - low + 1)),
            per_channel=True,
            group_size=block_size,
            compute_dtype=x.dtype,
            epsilon=epsilon,
            signed=True,
        )
        scale, zero = step.of(stored.T), step.of(codes_of_zero.T)
    codes = np.rint(step(groups / scale[:, np.newaxis]))
    codes = np.clip(step(codes + zero[:, np.newaxis]), low, high)
    whole = codes.reshape(-1, x.shape[1])[: len(x)]
    return cast(step(whole), codes_dtype), cast(scale, x.dtype), cast(zero, np.int8)


def _groups(x: Array, axis: int, size: int) -> Array:
    """Cut an axis into two, of groups and of `size`; zeros fill the last group up."""
    missing = -x.shape[axis] % size
    if missing:
        x = np.pad(x, [(0, missing if place == axis else 0) for place in range(x.ndim)])
    return x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :])


@undisturbed
def fake_quant_with_min_max_vars(  # noqa: PLR0917 - as Keras
    inputs: ArrayLike,
    min_vals: ArrayLike,
    max_vals: ArrayLike,
    num_bits: int = 8,
    narrow_range: bool = False,
    axis: int | None = None,
) -> Array:
    """Quantise to integers between two limits, and decode.

    The limits are moved so that 0 is a code. There are no gradients here.

    Parameters
    ----------
    inputs : array_like
        Of a float dtype.
    min_vals, max_vals : array_like
        Numbers, or one for each index along `axis`.
    num_bits : int
        Bits of a code.
    narrow_range : bool
        Codes begin at 1, not at 0.
    axis : int, optional
        Of `inputs`, that vectors of limits lie along; the last one by default.

    Returns
    -------
    ndarray
        Of the shape and dtype of `inputs`.

    Raises
    ------
    ValueError
        `inputs` is not of a float dtype; `axis` is out of bounds; shapes do not fit.

    """
    x, lowest, highest = (
        floats_of("inputs", inputs),
        array_of("min_vals", min_vals),
        array_of("max_vals", max_vals),
    )
    step = Steps(np.float32)
    if axis is not None:
        lowest, highest = (_along(x, axis, limits) for limits in (lowest, highest))
    low, high = int(narrow_range), (1 << int(num_bits)) - 1
    smallest, largest = step.of(lowest), step.of(highest)
    reach = largest - smallest
    scale, inverse = reach / step.of(high - low), step.of(high - low) / reach
    zero = np.rint(np.clip(low - smallest / scale, low, high))
    nudged, limit = (low - zero) * scale, (high - zero) * scale
    code_of_zero = np.floor(-nudged * inverse + step.of(0.5))
    shifted = np.clip(step.of(x), nudged, limit) - nudged
    codes = np.floor(shifted * inverse - code_of_zero + step.of(0.5))
    return cast(codes * scale, x.dtype)


def _along(x: Array, axis: int, limits: Array) -> Array:
    """Let a vector lie along an axis of x."""
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis={axis} is not valid for inputs of shape {x.shape}.")
    return limits.reshape(-1, *[1] * (x.ndim - axis % x.ndim - 1)) if limits.ndim == 1 else limits
