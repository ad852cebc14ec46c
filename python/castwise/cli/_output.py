"""What all commands share: exit codes, messages, tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TextIO

from castwise._tables import aligned_lines

OK, FINDINGS, ERROR, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

_KILO = 1000
_CELL_CHARACTERS = 72
_NAME_CHARACTERS = 32  # of a name that are shown before other columns are left out
_LEAST_CHARACTERS = 12
_GAP = 2  # between columns
_COLUMNS = 80  # of a terminal that does not say
_NUMBER = re.compile(r"(?<![^./_])[0-9]+(?![^./])")


def abandon_output() -> None:
    """Send what is left of standard output nowhere, or Python would fail on it at exit."""
    with suppress(OSError, ValueError, AttributeError):  # a stream of a test or notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Print a message to standard error, after the name of the program."""
    print(f"castwise: {printable(text)}", file=sys.stderr)


def json_text(value: object) -> str:
    """Make strict JSON, which has neither infinities nor NaN."""
    return json.dumps(value, indent=2, allow_nan=False)


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


def show(lines: Iterable[str]) -> None:
    """Print lines to standard output, each of them printable."""
    for text in lines:
        for line in text.split("\n"):
            print(printable(line))


def tensors_text(count: int) -> str:
    """Write a number of tensors, with its noun in the singular or plural."""
    return f"{count:,} tensor{'' if count == 1 else 's'}"


def shape_text(shape: tuple[int, ...]) -> str:
    """Write a shape as 2x3, and an empty one as "scalar"."""
    return "x".join(map(str, shape)) if shape else "scalar"


def table(
    header: Sequence[str],
    make_rows: Callable[[], Iterable[Sequence[str]]],
    *,
    text_columns: int,
    total: Sequence[str] | None = None,
    spare: Sequence[str | tuple[str, ...]] = (),
) -> Iterator[str]:
    """Align columns line by line: the first `text_columns` to the left, numbers to the right.

    A total stands below a rule of its own. On a terminal that is too narrow, columns of zeros are
    left out, then those of `spare`, the first first and those of a tuple together; then names are
    cut at the left.
    """

    def cells() -> Iterator[Sequence[str] | None]:
        yield header
        yield None
        for row in make_rows():
            yield [printable(cell) for cell in row]
        if total is not None:
            yield None
            yield total

    sets = [
        {header.index(name) for name in ((names,) if isinstance(names, str) else names)}
        for names in spare
        if not isinstance(names, str) or names in header
    ]
    columns, longest = _fitting(cells, sets, terminal_columns(sys.stdout))

    def rows() -> Iterator[Sequence[str] | None]:
        for row in cells():
            if row is None:
                yield None
                continue
            limits = [longest, *[_CELL_CHARACTERS] * len(row)]
            yield [_shortened(row[column], limits[column]) for column in columns]

    return aligned_lines(rows, sum(column < text_columns for column in columns))


def _fitting(
    cells: Callable[[], Iterable[Sequence[str] | None]],
    spare: Sequence[set[int]],
    width: int | None,
) -> tuple[list[int], int]:
    """Choose the columns of a table for a terminal, and how long a cell of the first may be."""
    header = next(iter(cells())) or ()
    columns = list(range(len(header)))
    if width is None:
        return columns, _CELL_CHARACTERS
    widths, zeros = [*map(len, header)], set(columns[1:])
    for row in cells():
        if row is not None and row is not header:
            widths = [max(pair) for pair in zip(widths, map(len, row), strict=True)]
            zeros = {column for column in zeros if row[column] in {"0", ""}}

    def room() -> int:
        return width - sum(widths[column] + _GAP for column in columns[1:])

    for left_out in (*({column} for column in sorted(zeros)), *spare):
        if room() >= min(widths[0], _NAME_CHARACTERS):
            break
        columns = [column for column in columns if column not in left_out]
    return columns, max(room(), _LEAST_CHARACTERS)


def terminal_columns(stream: TextIO) -> int | None:
    """Return the width of a stream's own terminal; None if it is not one."""
    try:
        if not stream.isatty():
            return None
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except (OSError, ValueError, AttributeError):  # a stream of a test or notebook
        return None


def group_name(name: str) -> str:
    """Return the name of a tensor with a star for each number of a layer, block or expert."""
    return _NUMBER.sub("*", name)


def _shortened(cell: str, limit: int) -> str:
    """Leave out the beginning of a cell that is too long for a table: names differ at the end."""
    return cell if len(cell) <= limit else f"...{cell[3 - limit :]}"
