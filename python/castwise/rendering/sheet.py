"""What a report shows, before it is text or HTML: tables, lines, pictures and sections."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


class FormatRange(NamedTuple):
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


class Histogram(NamedTuple):
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
        # Whole exponents in a cell, so that cells of two histograms on one axis compare.
        width = max(math.ceil((high - low + 1) / CELLS), 1)
        cells = np.zeros(CELLS)
        places = np.clip((np.arange(len(self.counts)) + self.lowest - low) // width, 0, CELLS - 1)
        np.add.at(cells, places, self.counts)
        # Rounded up, so that a cell with any element shows.
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
    """Return the first and last exponent of several histograms, without the smallest elements."""
    # The smallest are 0.01 % of all elements, as far as they are 0.5 % of a histogram at most.
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


# How pages begin, and no other file.
PAGE_START = "<!doctype html><!-- castwise -->"

# Makes the rows of a table, each time anew, so that none need be kept.
MakeRows = Callable[[], Iterable[Sequence[str]]]


class Table(NamedTuple):
    """Columns of texts, to the left, and of numbers, to the right."""

    header: Sequence[str]  # the names of the columns; empty for none
    make_rows: MakeRows  # makes the rows; called more than once
    text_columns: int | None = None  # how many columns hold texts; None is all
    has_last_text: bool = False  # whether the last column holds texts, too
    total: Sequence[str] | None = None  # a row below a rule of its own
    # Names of columns that a narrow terminal goes without, the first first and those of a tuple
    # together; columns of zeros go before them.
    spare: Sequence[str | tuple[str, ...]] = ()
    # Names of columns for the decision of the reader. They stay if they are zeros, and if they are
    # spare, unless a name would have very few characters.
    decision: frozenset[str] = frozenset()
    # Names of columns whose cells a narrow terminal shows up to the first space.
    short: frozenset[str] = frozenset()
    # Names of columns whose numbers, but 0, count what was lost.
    losses: frozenset[str] = frozenset()
    ranked: bool = False  # true if the first rows are the worst, so that the others may be left out

    @classmethod
    def of(
        cls, header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int | None = None
    ) -> Table:
        """Return the table of rows that are kept."""
        return cls(header, lambda: rows, text_columns)


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of text."""

    texts: Sequence[str]
    # Cuts a long text for terminals, into several lines.
    cut: Callable[[str], Sequence[str]] = lambda text: (text,)

    def __iter__(self) -> Iterator[str]:
        return (line for text in self.texts for line in self.cut(text))


class Front(NamedTuple):
    """Bytes against error, with the point that was chosen. Only HTML has the picture."""

    points: Sequence[tuple[float, float]]  # bytes and error of each point, by bytes
    choice: tuple[float, float]  # those of the chosen point


class Exponents(NamedTuple):
    """Histograms of exponents above the ranges of formats. Only HTML has the picture."""

    histograms: Sequence[tuple[str, Histogram]]  # each with its name
    ranges: Sequence[FormatRange]  # of the formats they are to be compared with


class Section(NamedTuple):
    """Parts under a title, which HTML shows when they are asked for. Text is without them."""

    title: str
    parts: Sequence[Part] = ()


Part = Table | Lines | Front | Exponents | Section
# What a report shows, from its top to its end.
Sheet = Sequence[Part]
