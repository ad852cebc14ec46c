"""Densities of magnitudes within a binade, of which a survey knows the mean square."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_NEWTON_STEPS = 8

_STEEPEST = 60.0
"""A density falls by at most so many times e across a binade."""


def densities(
    points: NDArray[np.float64],
    mean_squares: NDArray[np.float64],
    is_inside: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """Return weights of points, exponential in their distance, that have a mean of squares.

    Tails of normal and of Laplace's distributions are like that within a binade. Points have the
    shape (binades, points); those that are not inside weigh nothing, and weights of a binade add up
    to 1.
    """
    squares, steps = np.square(points), points - points[:, :1]
    rate = np.zeros((len(points), 1))
    for _ in range(_NEWTON_STEPS):
        weights = np.exp(-rate * steps)
        if is_inside is not None:
            weights = np.where(is_inside, weights, 0)
        weights /= np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        mean = (weights * squares).sum(axis=1, keepdims=True)
        mean_step = (weights * steps).sum(axis=1, keepdims=True)
        slope = (weights * squares * (steps - mean_step)).sum(axis=1, keepdims=True)
        change = (mean - mean_squares[:, None]) / np.maximum(slope, 1e-9)
        rate = np.clip(rate + np.clip(change, -8, 8), -_STEEPEST, _STEEPEST)
    return weights
