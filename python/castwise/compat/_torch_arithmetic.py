"""Multiply and unscale numpy arrays with torch's rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

from castwise import _trees as trees
from castwise._floating import is_floating
from castwise.compat import _scaling as scaling
from castwise.loss_scale._unscaling import all_finite, unscale_as_originals


def times(output: Any, scale: np.float32) -> Any:
    """Multiply by a float32 of rank 0 in float32, then cast back unless the value has rank 0."""
    if not (is_floating(output.dtype) or output.dtype.kind == "c"):
        return scaling.times(output.astype(np.float32), scale)
    product = scaling.times(output, scale)
    with np.errstate(over="ignore", invalid="ignore"):
        return product.astype(output.dtype) if np.ndim(output) else product


def unscale(grads: list[list[Any]], scale: float) -> bool:
    """Divide in place, and tell whether all were finite; 0 and infinity have IEEE's reciprocals."""
    if scaling.is_usable(scale):
        _, finite = unscale_as_originals(grads, scale, grads)
        return finite
    finite = all_finite(grads)
    for grad in trees.values(grads):
        grad[...] = scaling.times(grad, scaling.reciprocal(scale))
    return finite
