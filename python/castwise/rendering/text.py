"""Sheets as text: columns that fit a terminal, and color where it takes it."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice

from castwise.rendering.sheet import Lines, Sheet, Table
from castwise.text.brief import counted
from castwise.text.wording import quote

# As disks and the Hub count: kB, MB and GB are powers of 1000.
_KILO = 1000
# Between separators: the 3 of `layers.3.mlp`, and not that of `conv3`.
_NUMBER = re.compile(r"(?<![^./_])[0-9]+(?![^./])")


def group_name(name: str) -> str:
    """Return the name of a tensor with a star for each number of a layer, block or expert."""
    return _NUMBER.sub("*", name)


def shape_text(shape: tuple[int, ...]) -> str:
    """Write a shape as 2x3, and an empty one as "scalar"."""
    return "x".join(map(str, shape)) if shape else "scalar"


def size_text(nbytes: int) -> str:
    """Write a number of bytes as people say it, in powers of 1000."""
    if nbytes < _KILO:
        return f"{nbytes} B"
    size, units = nbytes / _KILO, iter(("kB", "MB", "GB", "TB"))
    unit = next(units)
    while size >= _KILO and unit != "TB":
        size, unit = size / _KILO, next(units)
    return f"{size:.1f} {unit}"


def printable(text: str) -> str:
    """Escape control characters: names come from files that nobody trusts."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


_NAME_CHARACTERS = 30  # of a name that are shown before other columns are left out
_SHORT_NAME_CHARACTERS = 16  # of a name that are shown before columns of the decision are left out
# Of the first column, with the names, however narrow the terminal is.
_LEAST_CHARACTERS = 12
# What a line has in the place of a part of a name.
CUT = "…"

# A component that is a number, or the star of several, and has others behind it.
_LAYER = re.compile(r"(?<![^.])(?:\d+|\*)(?=\.)")
_GAP = 2  # between columns
# Cells that say nothing; a column of zeros alone is not printed.
_NOTHING = frozenset(("0", "", "-"))
_HEADER, _LOSS, _PLAIN = "\033[1m", "\033[1;31m", "\033[0m"

_Cells = Callable[[], Iterable[Sequence[str] | None]]


def text_of(sheet: Sheet) -> str:
    """Return a sheet as text, as wide as it is."""
    return "\n".join(text_lines(sheet))


def text_lines(
    sheet: Sheet,
    *,
    width: int | None = None,
    longest: int | None = None,
    top: int | None = None,
    color: bool = False,
) -> Iterator[str]:
    """Make the lines of a sheet."""
    for part in sheet:
        if isinstance(part, Table):
            yield from _table_lines(part, (width, longest), top, color=color)
        elif isinstance(part, Lines):
            yield from map(printable, part)


def is_lost(cell: str) -> bool:
    """Return True for a number that is not 0."""
    return cell not in _NOTHING


def unused_lines(patterns: Mapping[str, str | None]) -> list[str]:
    """Write a line for each unused pattern, with the name that it may have meant."""
    return [
        "unused pattern "
        + quote(pattern)
        + ("" if nearest is None else "; nearest is " + quote(nearest))
        for pattern, nearest in patterns.items()
    ]


def _table_lines(
    table: Table, limits: tuple[int | None, int | None], top: int | None, *, color: bool
) -> Iterator[str]:
    """Align the columns of a table line by line: its rows are made again, and none is kept."""
    top = top if table.ranked else None

    def cells() -> Iterator[Sequence[str] | None]:
        if table.header:
            yield table.header
            yield None
        for row in islice(table.make_rows(), top):
            yield [cell if cell.isprintable() else printable(cell) for cell in row]
        if table.total is not None:
            yield None
            yield table.total

    layout = _LineLayout(table, cells, *limits)
    text_count = len(layout.columns) if table.text_columns is None else table.text_columns
    losses = {index for index, name in enumerate(table.header) if name in table.losses}
    for line, row in enumerate(cells()):
        if row is None:
            yield "  ".join("-" * layout.widths[column] for column in layout.columns)
            continue
        texts = []
        for column, cell in layout.cells(row):
            is_last_text = table.has_last_text and column == len(row) - 1
            pad = cell.ljust if column < text_count or is_last_text else cell.rjust
            text = pad(layout.widths[column])
            if color and table.header and line == 0:
                text = f"{_HEADER}{text}{_PLAIN}"
            elif color and column in losses and is_lost(cell):
                text = f"{_LOSS}{text}{_PLAIN}"
            texts.append(text)
        yield "  ".join(texts).rstrip()
    if top is not None and (left_out := sum(1 for _ in islice(table.make_rows(), top, None))):
        yield f"and {counted(left_out, 'other row')}"


class _ColumnSizes:
    """How many characters the columns of a table need, and what its rows have in common."""

    def __init__(self, table: Table, cells: _Cells) -> None:
        rows: Iterator[Sequence[str]] = (row for row in cells() if row is not None)
        top_row = next(rows, ())
        self.widths: list[int] = [*map(len, top_row)]
        self.least = self.widths[0] if top_row and table.header else 0  # of names
        # The first words of columns that may go without the others.
        shortened = [index for index, name in enumerate(table.header) if name in table.short]
        self.short_widths = {index: len(top_row[index].partition(" ")[0]) for index in shortened}
        self.zeros = {*range(1, len(top_row))}  # columns without a number that is not 0
        self.ending: str | None = None  # the last component of all names, with its dot
        if not table.header:
            rows = chain([top_row], rows)
        for row in rows:
            self.widths = [*map(max, self.widths, map(len, row))]
            for index in shortened:
                length = len(row[index].partition(" ")[0])
                self.short_widths[index] = max(self.short_widths[index], length)
            self.zeros = {column for column in self.zeros if row[column] in _NOTHING - {"-"}}
            if row is not table.total:
                _, dot, last = row[0].rpartition(".")
                ending = dot + last if dot else ""
                self.ending = ending if self.ending in (None, ending) else ""


# A narrow line goes without columns of zeros, then without spare columns, the second words of
# cells, and the end that all names share; at last it goes without columns of the decision.
class _LineLayout:
    """The columns of a table that a line has, and how much of each cell."""

    def __init__(self, table: Table, cells: _Cells, width: int | None, longest: int | None) -> None:
        sizes = _ColumnSizes(table, cells)
        self.columns: list[int] = [*range(len(sizes.widths))]
        self.widths: list[int] = [min(letters, longest or letters) for letters in sizes.widths]
        self._short: set[int] = set()
        self._ending = ""
        if not self.columns or width is None:
            return
        names = list(table.header)
        spare = [
            {names.index(name) for name in ((column,) if isinstance(column, str) else column)}
            for column in table.spare
            if not isinstance(column, str) or column in names
        ]
        decision = {index for index, name in enumerate(names) if name in table.decision}
        less = [*({column} for column in sorted(sizes.zeros - decision)), *spare]
        self._leave_out((each for each in less if not each & decision), width, _NAME_CHARACTERS)
        if self._room(width) < min(self.widths[0], _NAME_CHARACTERS):
            self._short = {index for index, name in enumerate(names) if name in table.short}
            for column in self._short:
                self.widths[column] = sizes.short_widths[column]
        if self._room(width) < self.widths[0] and sizes.ending:
            self._ending = sizes.ending
            self.widths[0] = max(self.widths[0] - len(sizes.ending), sizes.least)
        self._leave_out((each for each in less if each & decision), width, _SHORT_NAME_CHARACTERS)
        self.widths[0] = min(self.widths[0], max(self._room(width), _LEAST_CHARACTERS))

    def _room(self, width: int) -> int:
        """Return how many characters of a line other columns leave to the first."""
        beside: int = sum(self.widths[column] + _GAP for column in self.columns[1:])
        return width - beside

    def _leave_out(self, columns: Iterable[set[int]], width: int, characters: int) -> None:
        """Leave columns out until so many characters of a name have room."""
        for left_out in columns:
            if self._room(width) >= min(self.widths[0], characters):
                return
            self.columns = [column for column in self.columns if column not in left_out]

    def cells(self, row: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Yield the columns of a line, with as much of each cell as there is room for."""
        for column in self.columns:
            cell, width = row[column], self.widths[column]
            if column == 0:
                cell = cell.removesuffix(self._ending)
            elif column in self._short:
                cell = cell.partition(" ")[0]
            yield column, cell if len(cell) <= width else _shorten(cell, width)


def _shorten(cell: str, limit: int) -> str:
    """Shorten a name that is too long to its end, and the numbers of layers and experts before."""
    start = len(cell) - limit + len(CUT)
    numbers = "".join(f"{each[0]}{CUT}" for each in _LAYER.finditer(cell) if each.start() < start)
    start = len(cell) - limit + len(numbers)
    if not numbers or 2 * len(numbers) > limit:
        numbers, start = CUT, len(cell) - limit + len(CUT)
    end = cell[start:]
    if cell[start - 1] != "." and "." in end[: len(end) // 2]:  # begin with a whole component
        end = end.partition(".")[2]
    return f"{numbers}{end}"
