"""Codes of a matrix by the scales and zero points of groups."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from castwise import _core
from castwise._core import cast, read_array
from castwise.quantization.keras._steps import (
    BYTES,
    FLOATS,
    MATRIX,
    Array,
    Steps,
    array_of,
    floats_of,
    undisturbed,
)


@undisturbed
def quantize_with_sz_map(  # noqa: PLR0917 - as Keras
    weights_matrix: ArrayLike,
    scale: ArrayLike,
    zero: ArrayLike,
    g_idx: ArrayLike,
    maxq: ArrayLike,
    group_axis: int = -1,
) -> Array:
    """Quantise a matrix by the scales and zero points of groups.

    Parameters
    ----------
    weights_matrix : array_like
        Of a float dtype.
    scale, zero : array_like
        A column (`group_axis` -1) or a row (0) for each group; `scale` of a float dtype.
    g_idx : array_like
        The group of each element of `weights_matrix` along `group_axis`; floats are cut off.
    maxq : number
        The largest code; the smallest is 0.
    group_axis : int
        Of `scale` and `zero`.

    Returns
    -------
    ndarray
        Codes, of the shape of `weights_matrix`, in the float dtype of the quotients.

    Raises
    ------
    ValueError
        An array is not of a float dtype; shapes do not fit.
    IndexError
        There is no such group.

    """
    x, scales = floats_of("weights_matrix", weights_matrix), floats_of("scale", scale)
    scale_step, step = Steps(scales.dtype), Steps(x.dtype, scales.dtype)
    by_group = scale_step.of(scales)
    by_group = np.where(by_group == 0, scale_step.of(1e-8), by_group)
    divisors, zeros = (
        np.take(array, _group_numbers(g_idx), axis=group_axis)
        for array in (by_group, scale_step.of(array_of("zero", zero)))
    )
    codes = np.rint(step(step(step.of(x) / divisors) + zeros))
    return step.stored(np.clip(codes, 0, array_of("maxq", maxq).astype(step.wide)))


@undisturbed
def dequantize_with_sz_map(
    weights_matrix: ArrayLike,
    scale: ArrayLike,
    zero: ArrayLike,
    g_idx: ArrayLike,
    group_axis: int = -1,
) -> Array:
    """Decode a matrix by the scales and zero points of groups: ``(codes - zero) * scale``.

    Parameters
    ----------
    weights_matrix : array_like
        Codes, of integers or of a float dtype.
    scale, zero, g_idx, group_axis
        As for `quantize_with_sz_map`.

    Returns
    -------
    ndarray
        Of the shape of `weights_matrix`, of the dtype of `scale` if codes are integers.

    Raises
    ------
    ValueError, IndexError
        As for `quantize_with_sz_map`.

    """
    codes, zeros = array_of("weights_matrix", weights_matrix), array_of("zero", zero)
    scales = floats_of("scale", scale)
    groups = _group_numbers(g_idx)
    if (decoded := _decoded(codes, scales, zeros, groups, group_axis)) is not None:
        return decoded
    scale_step = Steps(scales.dtype)
    is_float = codes.dtype.name in FLOATS
    step = Steps(codes.dtype, scales.dtype) if is_float else scale_step
    factors, shifts = (
        np.take(array, groups, axis=group_axis)
        for array in (scale_step.of(scales), scale_step.of(zeros))
    )
    return step.stored(step(step.of(codes) - shifts) * factors)


def _group_numbers(g_idx: ArrayLike) -> Array:
    return cast(read_array("g_idx", g_idx), np.int32)


def _decoded(codes: Array, scales: Array, zeros: Array, groups: Array, axis: int) -> Array | None:
    """Decode bytes with float32 scales in one pass; None if the arrays are not such."""
    along = axis % MATRIX
    fits = (
        axis in (-1, 0, 1)
        and {codes.dtype.name, zeros.dtype.name} <= set(BYTES)
        and scales.dtype == np.float32
        and codes.ndim == scales.ndim == MATRIX
        and scales.shape == zeros.shape
        and scales.shape[1 - along] == codes.shape[1 - along]
        and groups.shape == (codes.shape[along],)
        and codes.size > 0
        and 0 <= groups.min() <= groups.max() < scales.shape[along]
    )
    if not fits:
        return None
    out = np.empty(codes.shape, np.float32)
    rows, factors, shifts, values = (
        array if along else array.T for array in (codes, scales, zeros, out)
    )
    _core.decode_blocks(
        rows,
        factors,
        values,
        element=codes.dtype.name,
        bits=8,
        block=(1, 1),
        zero_point=shifts,
        group_index=groups,
    )
    return out
