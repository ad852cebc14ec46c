"""Whether two quantized weights have the same codes and scales, whatever they are stored in."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise.quantization import QuantizedArray
from castwise.quantization.arrays.conversion import DATA, SCALES, ZEROS, converted_part, of_rows
from castwise.quantization.arrays.row_slices import step_of
from castwise.quantization.arrays.views import views_of
from castwise.quantization.weights.decoding import Decoding, Slab

# Both sides are in memory at once: some MiB, whatever the weight has.
_SLAB_ELEMENTS = 1 << 20
# How far global scales may be apart: the reciprocal of one is rounded, to a neighbor perhaps.
_NEAR = 2.0**-22


def first_rows(plan: Decoding) -> QuantizedArray | None:
    """Return some rows of a weight as they are stored; None if another package decodes it."""
    if plan.values is not None or not all(plan.matrix_shape):
        return None
    *stack, rows, _ = plan.matrix_shape
    return plan.rows(Slab((0,) * len(stack), 0, min(plan.step, rows)))


def have_same_parts(first_plan: Decoding, second_plan: Decoding) -> bool:
    """Return True if all codes and scales of two weights are the same, but for their order."""
    original, copy = first_rows(first_plan), first_rows(second_plan)
    shapes_differ = first_plan.matrix_shape != second_plan.matrix_shape
    if original is None or copy is None or shapes_differ:
        return False
    views, form = views_of(original), views_of(copy)
    if views.scheme is not form.scheme or views.block != form.block:
        return False
    if not have_same_level(original, copy):
        return False
    step = math.lcm(first_plan.step, second_plan.step, step_of(form))
    return all(
        _are_same(first_plan.rows(slab), second_plan.rows(slab))
        for slab in first_plan._replace(step=step).slabs(_SLAB_ELEMENTS)
    )


def have_same_level(original: QuantizedArray, copy: QuantizedArray) -> bool:
    """Return True if global scales multiply by the same, but for the rounding of a reciprocal."""
    return math.isclose(_factor(original), _factor(copy), rel_tol=_NEAR)


def _factor(q: QuantizedArray) -> np.float64:
    """Return what a global scale multiplies by; 1 without one."""
    if q.global_scale is None:
        return np.float64(1)
    storage = views_of(q).storage
    level = np.float64(np.asarray(q.global_scale).reshape(())) / storage.global_unit
    with np.errstate(all="ignore"):
        return 1 / level if storage.global_use == "divide" else level


def _are_same(original: QuantizedArray, copy: QuantizedArray) -> bool:
    form = of_rows(views_of(copy), views_of(copy).shape[0])
    pairs: list[tuple[str, Any]] = [(DATA, copy.data), (SCALES, copy.scale)]
    if (original.zero_point is None) != (copy.zero_point is None):
        return False
    if copy.zero_point is not None:
        pairs.append((ZEROS, copy.zero_point))
    return all(same_bytes(converted_part(original, form, key), part) for key, part in pairs)


def same_bytes(original: NDArray[Any], copy: NDArray[Any]) -> bool:
    """Return True if two arrays of a dtype have the same bytes, whatever their axes."""
    first_bytes, second_bytes = (
        np.ascontiguousarray(array).reshape(-1) for array in (original, copy)
    )
    return first_bytes.dtype == second_bytes.dtype and np.array_equal(
        first_bytes.view(np.uint8), second_bytes.view(np.uint8)
    )
