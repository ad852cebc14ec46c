"""What a report shows, before it is text or HTML: tables, lines, pictures and sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from castwise.rendering.exponents import FormatRange, Histogram

# How pages begin, and no other file.
PAGE_START = "<!doctype html><!-- castwise -->"

# Makes the rows of a table, each time anew, so that none need be kept.
MakeRows = Callable[[], Iterable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Table:
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


@dataclass(frozen=True, slots=True)
class Front:
    """Bytes against error, with the point that was chosen. Only HTML has the picture."""

    points: Sequence[tuple[float, float]]  # bytes and error of each point, by bytes
    choice: tuple[float, float]  # those of the chosen point


@dataclass(frozen=True, slots=True)
class Exponents:
    """Histograms of exponents above the ranges of formats. Only HTML has the picture."""

    histograms: Sequence[tuple[str, Histogram]]  # each with its name
    ranges: Sequence[FormatRange]  # of the formats they are to be compared with


@dataclass(frozen=True, slots=True)
class Section:
    """Parts under a title, which HTML shows when they are asked for. Text is without them."""

    title: str
    parts: Sequence[Part] = field(default_factory=tuple)


Part = Table | Lines | Front | Exponents | Section
# What a report shows, from its top to its end.
Sheet = Sequence[Part]
