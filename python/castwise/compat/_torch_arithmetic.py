"""torch's products of losses and scales, and its unscaling, on numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from castwise import _trees as trees
from castwise._floating import is_floating
from castwise.compat import _scaling as scaling
from castwise.loss_scale._unscaling import all_finite, unscale_as_originals


def times(output: Any, scale: np.float32) -> Any:
    """Torch's product with a float32 of rank 0: in float32, then back, unless rank 0 too."""
    if not (is_floating(output.dtype) or output.dtype.kind == "c"):
        return scaling.times(output.astype(np.float32), scale)
    product = scaling.times(output, scale)
    with np.errstate(over="ignore", invalid="ignore"):
        return product.astype(output.dtype) if np.ndim(output) else product


def unscale(grads: list[list[Any]], scale: float) -> bool:
    """Divide in place; whether all were finite. Where there is no reciprocal, IEEE's, as torch."""
    if scaling.is_usable(scale):
        _, finite = unscale_as_originals(grads, scale, grads)
        return finite
    finite = all_finite(grads)
    for grad in trees.values(grads):
        grad[...] = scaling.times(grad, scaling.reciprocal(scale))
    return finite
