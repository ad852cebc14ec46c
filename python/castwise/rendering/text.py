"""Sheets as text: columns that fit a terminal, and color where it takes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from castwise.rendering.sheet import Lines, Sheet, Table
from castwise.rendering.words import printable
from castwise.text.brief import counted
from castwise.text.wording import quote

_NAME_CHARACTERS = 30  # of a name that are shown before other columns are left out
_LEAST_CHARACTERS = 12
_CUT = "..."
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")
_GAP = 2  # between columns
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

    columns, widths = _fitting(table, cells, *limits)
    text_count = len(columns) if table.text_columns is None else table.text_columns
    losses = {index for index, name in enumerate(table.header) if name in table.losses}
    for line, row in enumerate(cells()):
        if row is None:
            yield "  ".join("-" * widths[column] for column in columns)
            continue
        texts = []
        for column in columns:
            cell = _shorten(row[column], widths[column])
            pad = cell.ljust if column < text_count else cell.rjust
            text = pad(widths[column])
            if color and table.header and line == 0:
                text = f"{_HEADER}{text}{_PLAIN}"
            elif color and column in losses and is_lost(cell):
                text = f"{_LOSS}{text}{_PLAIN}"
            texts.append(text)
        yield "  ".join(texts).rstrip()
    if top is not None and (left_out := sum(1 for _ in islice(table.make_rows(), top, None))):
        yield f"and {counted(left_out, 'other row')}"


def _fitting(
    table: Table, cells: _Cells, width: int | None, longest: int | None
) -> tuple[list[int], list[int]]:
    """Choose the columns of a table for a line, and the characters of each."""
    widths: list[int] = []
    zeros: set[int] = set()
    for index, row in enumerate(cells()):
        if row is None:
            continue
        if not widths:
            widths, zeros = [0] * len(row), set(range(1, len(row)))
        widths = [max(pair) for pair in zip(widths, map(len, row), strict=True)]
        if index or not table.header:
            zeros = {column for column in zeros if row[column] in _NOTHING - {"-"}}
    columns = list(range(len(widths)))
    limits = widths if longest is None else [min(letters, longest) for letters in widths]
    if not widths or width is None:
        return columns, limits

    def room() -> int:
        return width - sum(limits[column] + _GAP for column in columns[1:])

    names = list(table.header)
    spare = [
        {names.index(name) for name in ((column,) if isinstance(column, str) else column)}
        for column in table.spare
        if not isinstance(column, str) or column in names
    ]
    for left_out in (*({column} for column in sorted(zeros)), *spare):
        if room() >= min(limits[0], _NAME_CHARACTERS):
            break
        columns = [column for column in columns if column not in left_out]
    return columns, [min(widths[0], max(room(), _LEAST_CHARACTERS)), *limits[1:]]


def _shorten(cell: str, limit: int) -> str:
    """Leave out the beginning of a cell that is too long for a table: names differ at the end.

    The last number of a layer stays, in which names with the same end differ.
    """
    if len(cell) <= limit:
        return cell
    numbers = [*_LAYER.finditer(cell)]
    number = f"{_CUT}{numbers[-1][0]}" if numbers else ""
    if numbers and numbers[-1].start() < len(cell) + len(_CUT) - limit and 2 * len(number) < limit:
        return f"{number}{_CUT}{cell[len(number) + len(_CUT) - limit :]}"
    return f"{_CUT}{cell[len(_CUT) - limit :]}"
