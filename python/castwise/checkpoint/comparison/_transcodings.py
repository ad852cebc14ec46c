"""Whether two quantised weights have the same codes and scales, whatever they are stored in."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise.quantization import QuantizedArray
from castwise.quantization.arrays.conversion import DATA, SCALES, ZEROS, converted_part, of_rows
from castwise.quantization.arrays.row_slices import step_of
from castwise.quantization.arrays.views import views_of
from castwise.quantization.weights.decoding import Decoding, Slab

_SLAB_ELEMENTS = 1 << 20
_NEAR = 2.0**-22
"""How far global scales may be apart: the reciprocal of one is rounded, to a neighbour perhaps."""


def first_rows(plan: Decoding) -> QuantizedArray | None:
    """Return some rows of a weight as they are stored; None if another package decodes it."""
    if plan.values is not None or not all(plan.matrix_shape):
        return None
    *stack, rows, _ = plan.matrix_shape
    return plan.rows(Slab((0,) * len(stack), 0, min(plan.step, rows)))


def have_same_parts(left: Decoding, right: Decoding) -> bool:
    """Return True if all codes and scales of two weights are the same, but for their order."""
    first, second = first_rows(left), first_rows(right)
    if first is None or second is None or left.matrix_shape != right.matrix_shape:
        return False
    views, form = views_of(first), views_of(second)
    if views.scheme is not form.scheme or views.block != form.block:
        return False
    if abs(_factor(first) / _factor(second) - 1) > _NEAR:
        return False
    step = math.lcm(left.step, right.step, step_of(form))
    return all(
        _are_same(left.rows(cut), right.rows(cut))
        for cut in replace(left, step=step).slabs(_SLAB_ELEMENTS)
    )


def _factor(q: QuantizedArray) -> np.float64:
    """Return what a global scale multiplies by; 1 without one."""
    if q.global_scale is None:
        return np.float64(1)
    storage = views_of(q).storage
    level = np.float64(np.asarray(q.global_scale).reshape(())) / storage.global_unit
    with np.errstate(all="ignore"):
        return 1 / level if storage.global_use == "divide" else level


def _are_same(left: QuantizedArray, right: QuantizedArray) -> bool:
    form = of_rows(views_of(right), views_of(right).shape[0])
    pairs: list[tuple[str, Any]] = [(DATA, right.data), (SCALES, right.scale)]
    if (left.zero_point is None) != (right.zero_point is None):
        return False
    if right.zero_point is not None:
        pairs.append((ZEROS, right.zero_point))
    return all(_same_bytes(converted_part(left, form, key), part) for key, part in pairs)


def _same_bytes(left: NDArray[Any], right: NDArray[Any]) -> bool:
    ahead, behind = (np.ascontiguousarray(array).reshape(-1) for array in (left, right))
    return ahead.dtype == behind.dtype and ahead.tobytes() == behind.tobytes()
