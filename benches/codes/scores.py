"""Scores of quantized weights, with intervals: what the commands of this folder share."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]
Sums = NDArray[np.float64]

SAMPLES = 2000
WON, TIED, LOST = "won", "tied", "lost"


def squares(weight: Values, products: Sums | None = None) -> Sums:
    """The sum of squares of each row; with the products of inputs, that of the outputs of a row."""
    rows = np.asarray(weight, np.float64)
    result: Sums = (rows * (rows if products is None else rows @ products)).sum(axis=1)
    return result


def decibels(signal: Sums, noise: Sums) -> float:
    """The ratio of signal to noise of all rows; infinite where nothing changed."""
    with np.errstate(divide="ignore"):
        return float(10 * np.log10(signal.sum() / noise.sum()))


@cache
def samples(count: int) -> Sums:
    """How often each of so many rows or examples is drawn, in each bootstrap sample."""
    rng = np.random.default_rng(0)
    return rng.multinomial(count, np.full(count, 1 / count), SAMPLES).astype(np.float64)


def interval(values: Sums) -> tuple[float, float]:
    """The middle 95 % of bootstrap samples."""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def decibel_interval(noise: Sums, other: Sums) -> tuple[float, float]:
    """The 95 % interval of how many decibels the first noise is below the other one, by rows."""
    drawn = samples(len(noise))
    with np.errstate(divide="ignore", invalid="ignore"):
        return interval(np.nan_to_num(10 * np.log10((drawn @ other) / (drawn @ noise))))


def mean_interval(errors: Sums) -> tuple[float, float]:
    """The 95 % interval of a mean over examples."""
    return interval(samples(len(errors)) @ errors / len(errors))


def outcome(errors: Sums, other: Sums) -> str:
    """Whether the first errors are less for sure, or more: their interval excludes zero."""
    low, high = mean_interval(errors - other)
    return WON if high < 0 else LOST if low > 0 else TIED
