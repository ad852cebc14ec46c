"""What quantizing by a scheme does to blocks, given where the maximum lies in its binade.

Blocks of representatives are quantized by castwise itself, once for each scheme and recipe. A scale
follows from the maximum of its block, and blocks that are twice as large have errors that are twice
as large: one binade of maxima stands for all.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast
from castwise._options import Recipe, SchemeName
from castwise.quantization import dequantize
from castwise.quantization.arrays.quantize import quantize_slab
from castwise.quantization.producers.schemes import find_scheme

DEPTHS = 40  # binades below that of the maximum in which errors are told apart
_POINTS = 64  # representatives of a binade
MAXIMA = 64  # parts of a binade of maxima that errors are known for
_WIDTH = 32  # elements of a row that is a block itself

_Table = NDArray[np.float64]

# Rates at which a density falls across a binade, the mean of squares rising.
_TILTS = np.array([-40, -20, -12, -8, -5, -3, -2, -1, 0, 1, 2, 3, 5, 8, 12, 20, 40.0])[::-1]

# A step of Newton's method changes the rate by at most 8: eight reach the steepest, 60.
_NEWTON_STEPS = 8
_STEEPEST = 60.0  # a density falls by at most so many times e across a binade


# The last axis is the tilt of the density within a binade. Errors are squared, in units of four to
# the exponent of the maximum.
class Response(NamedTuple):
    """Mean errors, by the part of its binade that a maximum is in."""

    # noise, zeros: The mean error, and the share that becomes zero, by the binades below the
    # maximum's.
    noise: _Table
    zeros: _Table
    mean_squares: _Table  # of magnitudes from 1 to the maximum, and from 1 to 2
    # noise_of_maxima, squares_of_maxima: The mean error of the maximum itself, and its square.
    noise_of_maxima: _Table
    squares_of_maxima: _Table

    def at(self, maximum: float) -> Response:
        """Return the response for one maximum, whatever its exponent."""
        # frexp has significands from 0.5 to 1, and maxima are spread from 1 to 2.
        place = int((2 * math.frexp(maximum)[0] - 1) * MAXIMA) if maximum else 0
        return Response(*(np.repeat(table[place : place + 1], 8, axis=0) for table in self))

    def of_eighths(self) -> Response:
        return Response(
            *(table.reshape(8, MAXIMA // 8, *table.shape[1:]).mean(axis=1) for table in self)
        )

    def parts_of_eighths(self) -> list[Response]:
        """Return the first, the second, ... of the parts that `of_eighths` takes the mean of."""
        return [
            Response(*(table.reshape(8, -1, *table.shape[1:])[:, part] for table in self))
            for part in range(MAXIMA // 8)
        ]

    def losses(self, phase: int, counts: _Table, squares: _Table) -> tuple[float, float]:
        """Return the sum of squared errors of elements, and how many of them become zero."""
        depths = np.arange(DEPTHS)
        means = squares * np.ldexp(1.0, 2 * depths) / np.maximum(counts, 1)
        tilts = np.interp(means, self.mean_squares[phase, 1], np.arange(len(_TILTS)))
        # In the highest binade magnitudes end at the maximum, so their mean square is another.
        tilts[0] = np.interp(means[0], self.mean_squares[phase, 0], np.arange(len(_TILTS)))
        index = np.minimum(tilts.astype(int), len(_TILTS) - 2)
        part = tilts - index
        values = [
            (1 - part) * table[phase, depths, index] + part * table[phase, depths, index + 1]
            for table in (self.noise, self.zeros)
        ]
        return float((counts * values[0]).sum()), float((counts * values[1]).sum())


def spread_points(number: int) -> _Table:
    """Return points of the unit interval, one in each of so many parts, on no binary grid."""
    places = np.arange(number)
    # Multiples of an irrational number, modulo 1, are spread evenly (Weyl) and meet no binary grid.
    points: _Table = (places + math.sqrt(2) * places % 1) / number
    return points


def densities(
    points: NDArray[np.float64],
    mean_squares: NDArray[np.float64],
    is_inside: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """Return weights of points, exponential in their distance, that have a mean of squares."""
    # Tails of normal and of Laplace's distributions are like that within a binade. Points have the
    # shape (binades, points); those that are not inside weigh nothing, and weights of a binade add
    # up to 1.
    squares, steps = np.square(points), points - points[:, :1]
    rate = np.zeros((len(points), 1))
    for _ in range(_NEWTON_STEPS):
        weights = np.exp(-rate * steps)
        if is_inside is not None:
            weights = np.where(is_inside, weights, 0)
        weights /= np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        mean = (weights * squares).sum(axis=1, keepdims=True)
        mean_step = (weights * steps).sum(axis=1, keepdims=True)
        # The derivative of a mean under exponential weights is minus its covariance with the steps.
        slope = (weights * squares * (steps - mean_step)).sum(axis=1, keepdims=True)
        # Points that are all alike have no slope; far from the root, a step would overshoot.
        change = (mean - mean_squares[:, None]) / np.maximum(slope, 1e-9)
        rate = np.clip(rate + np.clip(change, -8, 8), -_STEEPEST, _STEEPEST)
    return weights


@lru_cache(64)
def response(scheme: SchemeName, recipe: Recipe | None, dtype: str) -> Response:
    """Quantize representatives of every binade below every maximum, in a dtype that holds them."""
    # Producers compute in the dtype of the weight, and some store scales in it.
    number = MAXIMA
    # Not the middle between codes, which some schemes have there
    maxima = 1 + spread_points(number)
    steps = spread_points(_POINTS)
    low = np.ldexp(1.0, -np.arange(DEPTHS))
    high = np.broadcast_to(2 * low, (number, DEPTHS)).copy()
    high[:, 0] = maxima
    points = low[None, :, None] + (high - low)[:, :, None] * steps
    magnitudes = points.reshape(number, -1)
    # A block of one row; blocks of whole rows are as wide as is handy.
    block = find_scheme(scheme).block[1] or _WIDTH
    payload = block - 1
    rows = -(-magnitudes.shape[1] // payload)
    columns = np.zeros((number, rows * payload))
    columns[:, : magnitudes.shape[1]] = magnitudes
    blocks = np.empty((2, number, rows, block))
    blocks[:, :, :, 0] = maxima[:, None]
    # Signs by turns: some schemes have one code more below zero than above.
    signs = np.where(np.arange(rows * payload) % 2, -1.0, 1.0)
    blocks[0, :, :, 1:] = (columns * signs).reshape(number, rows, payload)
    # Each block both ways round, so that codes without a mirror image do not favor a sign.
    blocks[1] = -blocks[0]
    elements = np.asarray(cast(blocks, dtype))
    values = elements.astype(np.float32)
    results = _requantize(elements.reshape(-1, block), scheme, recipe).reshape(values.shape)
    errors = np.square(results.astype(float) - values).mean(axis=0)
    zero = ((results == 0) & (blocks != 0)).mean(axis=0)

    def by_binade(cells: _Table) -> _Table:
        flat = cells[:, :, 1:].reshape(number, -1)[:, : magnitudes.shape[1]]
        return flat.reshape(number, DEPTHS, _POINTS)

    weights = np.exp(-_TILTS[:, None] * steps)
    weights /= weights.sum(axis=1, keepdims=True)
    significands = np.stack([points[:, 0], np.broadcast_to(1 + steps, points[:, 0].shape)], axis=1)
    return Response(
        by_binade(errors) @ weights.T,
        by_binade(zero) @ weights.T,
        np.square(significands) @ weights.T,
        errors[:, :, 0].mean(axis=1),
        np.square(maxima),
    )


# Schemes whose blocks have several rows, and those that do the same to a row.
_AS_ROWS: dict[SchemeName, SchemeName] = {
    "fp8_tensor": "fp8_channel",
    "int8_tensor": "int8_channel",
    "fp8_block": "fp8_channel",
}


def _requantize(
    blocks: NDArray[Any], scheme: SchemeName, recipe: Recipe | None
) -> NDArray[np.float32]:
    array_of_scheme = quantize_slab(blocks, _AS_ROWS.get(scheme, scheme), recipe=recipe)
    return np.asarray(dequantize(array_of_scheme, "float32"))
