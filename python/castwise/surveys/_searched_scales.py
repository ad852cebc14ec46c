"""How much less is lost where scales are searched, shown on blocks that are drawn from a survey.

Which scale loses least follows from all elements of a block together, so no table of one element
answers it. Blocks are drawn that have the maxima and the densities of the survey, and castwise
quantizes them with either choice of scales.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from castwise._core import cast
from castwise._options import Recipe, Scales
from castwise.quantization import Scheme, dequantize
from castwise.quantization.arrays.quantize import quantize_slab
from castwise.surveys._responses import DEPTHS, densities, spread_points
from castwise.surveys._tables import Blocks

# Elements that are drawn. Noise of so many differs by about 2 % between two draws.
_ELEMENTS = 1 << 14

_POINTS = 32  # representatives of a binade

# Elements of a block that is a row, at most: of more, the choice of a scale differs by little.
_WIDEST = 1 << 10


def loss_ratios(
    tables: Sequence[Blocks],
    largest: float,
    count: int,
    scheme: Scheme,
    *,
    recipe: Recipe | None,
    scales: Scales,
    dtype: DTypeLike,
) -> tuple[float, float]:
    """Return noise, and elements that become zero, over those with scales of the maxima."""
    # `tables` are the blocks of an array, by one shape or by each of several; `largest` is its
    # largest magnitude, `count` its elements, and `dtype` what it is taken to have.
    losses = np.zeros((2, 2))
    for table in tables:
        if len(table.blocks):
            width = scheme.block[1] or min(-(-count // int(table.blocks.sum())), _WIDEST)
            blocks, weights = _draw(table, width)
            for place, choice in enumerate((scales, "amax")):
                form = {"scheme": scheme.name, "recipe": recipe, "scales": choice}
                losses[place] += _losses(blocks, largest, dtype, **form) @ weights
    noise, zeros = np.divide(losses[0], losses[1], out=np.ones(2), where=losses[1] > 0)
    return float(noise), float(zeros)


def _losses(
    blocks: NDArray[np.float64],
    largest: float,
    dtype: DTypeLike,
    **form: Any,  # noqa: ANN401  (the arguments of `quantize_slab`)
) -> NDArray[np.float64]:
    """Return the squared error of each block, and its elements that become zero: (2, blocks)."""
    # The scale of the whole array follows from its largest magnitude, which has a block of its own.
    one = np.zeros((1, blocks.shape[1]))
    one[0, 0] = largest
    x: NDArray[Any] = cast(np.concatenate([np.clip(blocks, -largest, largest), one]), dtype)
    q = quantize_slab(x, **form)
    values, results = (cast(array, "float64")[:-1] for array in (x, dequantize(q, "float32")))
    squares = np.square((results - values) / largest)  # relative to the largest magnitude
    return np.stack([squares.sum(axis=1), ((results == 0) & (values != 0)).sum(axis=1)])


def _draw(table: Blocks, width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw blocks of so many elements; returns them and for how many of the survey each stands."""
    # Half of them are drawn by the number of blocks with such a maximum, and half by its square, as
    # few blocks may hold most of the noise. A fixed seed gives equal surveys equal predictions.
    draw, number = np.random.default_rng(0), max(_ELEMENTS // width, 1)
    numbers = table.blocks.astype(float)
    squares = numbers * np.exp2(2.0 * (table.eighths // 8 - table.eighths[-1] // 8))
    shares = np.cumsum(numbers / numbers.sum() + squares / squares.sum()) / 2
    rows = np.searchsorted(shares, (np.arange(number) + 0.5) / number)
    rows = np.minimum(rows, len(shares) - 1)
    weights = (numbers / np.maximum(np.bincount(rows, minlength=len(numbers)), 1))[rows]
    maxima = 1 + (table.eighths % 8)[rows] / 8 + draw.random(number) / 8
    blocks = np.zeros((number, width))
    for row in np.unique(rows):
        is_row = rows == row
        counts = table.counts[row, :DEPTHS].astype(float)
        squares = table.squares[row, :DEPTHS] * np.ldexp(1.0, 2 * np.arange(DEPTHS))
        middle = 1 + (table.eighths[row] % 8 + 0.5) / 8  # of the maxima
        of_maxima = float(table.blocks[row]) * np.square(middle)
        counts[0] = max(counts[0] - float(table.blocks[row]), 0.0)
        squares[0] = max(squares[0] - of_maxima, counts[0])
        if not counts.any():
            continue
        shape = int(is_row.sum()), width
        (depths_met,) = counts.nonzero()
        of_draws = draw.choice(len(depths_met), size=shape, p=counts[depths_met] / counts.sum())
        means = squares[depths_met] / counts[depths_met]
        # In the binade of the maximum, nothing is above it.
        ends = np.where(depths_met == 0, middle, 2.0)[:, None]
        points = 1 + (ends - 1) * spread_points(_POINTS)
        chances = densities(points, means)
        # A number of the unit interval of a binade falls between two of its steps.
        steps = np.cumsum(chances, axis=1) + np.arange(len(depths_met))[:, None]
        places = np.searchsorted(steps.ravel(), of_draws + draw.random(shape)) - of_draws * _POINTS
        significands = points[of_draws, np.clip(places, 0, _POINTS - 1)]
        magnitudes = np.ldexp(significands, -depths_met[of_draws])
        share_of_zeros = 1 - counts.sum() / max(float(table.blocks[row]) * (width - 1), 1.0)
        is_zero = draw.random(shape) < share_of_zeros
        blocks[is_row] = np.where(is_zero, 0.0, np.minimum(magnitudes, maxima[is_row, None]))
    blocks[:, 0] = maxima
    signs = draw.choice([-1.0, 1.0], blocks.shape)
    exponents = (table.eighths // 8)[rows]
    return np.ldexp(blocks * signs, exponents[:, None]), weights
