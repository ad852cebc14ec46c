"""What a report shows, before it is text or HTML: tables, lines, pictures and sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from castwise.rendering._exponents import FormatRange, Histogram

MakeRows = Callable[[], Iterable[Sequence[str]]]
"""Makes the rows of a table, each time anew, so that none need be kept."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of texts, to the left, and of numbers, to the right.

    Attributes
    ----------
    header
        The names of the columns; empty for none.
    make_rows
        Makes the rows; called more than once.
    text_columns
        How many columns hold texts; None is all.
    total
        A row below a rule of its own.
    spare
        Names of columns that a narrow terminal goes without, the first first and those of a tuple
        together; columns of zeros go before them.
    losses
        Names of columns whose numbers, but 0, count what was lost.
    ranked
        True if the first rows are the worst, so that the others may be left out.

    """

    header: Sequence[str]
    make_rows: MakeRows
    text_columns: int | None = None
    total: Sequence[str] | None = None
    spare: Sequence[str | tuple[str, ...]] = ()
    losses: frozenset[str] = frozenset()
    ranked: bool = False

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


@dataclass(frozen=True, slots=True)
class Front:
    """Bytes against error, with the point that was chosen. Only HTML has the picture.

    Attributes
    ----------
    points
        Bytes and error of each point, by bytes.
    chosen
        Those of the chosen point.

    """

    points: Sequence[tuple[float, float]]
    chosen: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Exponents:
    """Histograms of exponents above the ranges of formats. Only HTML has the picture.

    Attributes
    ----------
    histograms
        Each with its name.
    ranges
        Of the formats they are to be compared with.

    """

    histograms: Sequence[tuple[str, Histogram]]
    ranges: Sequence[FormatRange]


@dataclass(frozen=True, slots=True)
class Section:
    """Parts under a title, which HTML shows when they are asked for. Text is without them."""

    title: str
    parts: Sequence[Part] = field(default_factory=tuple)


Part = Table | Lines | Front | Exponents | Section
Sheet = Sequence[Part]
"""What a report shows, from its top to its end."""
