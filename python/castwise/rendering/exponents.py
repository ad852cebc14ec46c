"""Histograms of exponents, and the ranges of formats on the same axis."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from castwise._core import finfo

# Cells of a histogram in text.
CELLS = 16

# The share of elements that may exceed the usual exponents.
_OUTLIERS = 1e-3

# The letters of a histogram, from none to the most elements.
BARS = " ▁▂▃▄▅▆▇█"

_OPEN, _CLOSE = "[", "]"
# The shares of the smallest elements, of all and of one histogram, that need no axis.
_FEW, _FEW_OF_ONE = 1e-4, 5e-3


@dataclass(frozen=True, slots=True)
class FormatRange:
    """Where the magnitudes of a format lie, as powers of two."""

    name: str  # the format
    smallest: int  # the exponent of its smallest number above 0
    normal: int  # that of its smallest normal number
    largest: int  # that of its largest finite number

    @classmethod
    def of(cls, name: str) -> FormatRange:
        """Return the range of a format of floats."""
        row = finfo(name)
        smallest, normal, largest = (
            math.frexp(float(magnitude))[1] - 1
            for magnitude in (row.smallest_subnormal, row.smallest_normal, row.max)
        )
        return cls(row.name, smallest, normal, largest)

    @classmethod
    def of_integers(cls, bits: int) -> FormatRange:
        """Return the range of signed integers of so many bits."""
        return cls(f"int{bits}", 0, 0, max(bits - 2, 0))

    def shift(self, largest: int) -> FormatRange:
        """Return the range with a scale that moves its largest number to a power of two."""
        shift = largest - self.largest
        return FormatRange(self.name, self.smallest + shift, self.normal + shift, largest)


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many elements have each exponent."""

    lowest: int  # the first exponent
    counts: NDArray[np.uint64]  # the elements of this exponent and of those above it

    @classmethod
    def of(cls, exponents: NDArray[np.int64], counts: NDArray[np.uint64]) -> Histogram:
        """Return the histogram of the exponents that there are."""
        if not len(exponents):
            return cls(0, np.zeros(0, np.uint64))
        lowest = int(exponents.min())
        every = np.zeros(int(exponents.max()) - lowest + 1, np.uint64)
        every[exponents - lowest] = counts
        return cls(lowest, every)

    @classmethod
    def of_counts(cls, counts: Mapping[int, int]) -> Histogram:
        """Return the histogram of elements by exponent."""
        exponents = np.fromiter(counts, np.int64, len(counts))
        return cls.of(exponents, np.fromiter(counts.values(), np.uint64, len(counts)))

    @property
    def highest(self) -> int:
        """The last exponent."""
        return self.lowest + len(self.counts) - 1

    @property
    def usual_highest(self) -> int:
        """The exponent that at most 0.1 % of the elements exceed, as blocks without outliers do."""
        shares = np.cumsum(self.counts) / max(self.counts.sum(), 1)
        return self.lowest + int(np.searchsorted(shares, 1 - _OUTLIERS))

    def text(self, axis: tuple[int, int] | None = None, normal: FormatRange | None = None) -> str:
        """Draw the histogram in 16 letters, and brackets around a format's normal range."""
        if not len(self.counts):
            return ""
        low, high = axis or (self.lowest, self.highest)
        width = max(math.ceil((high - low + 1) / CELLS), 1)
        cells = np.zeros(CELLS)
        places = np.clip((np.arange(len(self.counts)) + self.lowest - low) // width, 0, CELLS - 1)
        np.add.at(cells, places, self.counts)
        levels = np.ceil(8 * cells / cells.max()).astype(int)
        letters = [BARS[level] for level in levels]
        if normal is None:
            return "".join(letters)
        start, end = ((edge - low) // width for edge in (normal.normal, normal.largest))
        if 0 <= end < CELLS:
            letters[end] += _CLOSE
        if 0 <= start < CELLS:
            letters[start] = _OPEN + letters[start]
        return "".join(letters)


def joint_axis(histograms: Iterable[Histogram]) -> tuple[int, int]:
    """Return the first and last exponent of several histograms, without the smallest elements.

    These are the least 0.01 % of all elements, as far as they are 0.5 % of a histogram at most.
    """
    histograms_with_counts = [histogram for histogram in histograms if len(histogram.counts)]
    if not histograms_with_counts:
        return 0, 0
    counts: Counter[int] = Counter()
    for histogram in histograms_with_counts:
        counts.update(dict(enumerate(histogram.counts.tolist(), histogram.lowest)))
    return (
        min(
            _lowest(Histogram.of_counts(counts), _FEW),
            *(_lowest(histogram, _FEW_OF_ONE) for histogram in histograms_with_counts),
        ),
        max(histogram.highest for histogram in histograms_with_counts),
    )


def _lowest(histogram: Histogram, few: float) -> int:
    shares = np.cumsum(histogram.counts) / histogram.counts.sum()
    return histogram.lowest + int(np.searchsorted(shares, few, side="right"))
