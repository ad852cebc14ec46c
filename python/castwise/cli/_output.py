"""What all commands share: exit codes, messages, tables for people, JSON for programs."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from castwise._tables import aligned_lines
from castwise.checkpoint import CheckpointError
from castwise.checkpoint._filesystem import checked_path

OK, FINDINGS, ERROR, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

_KILO = 1000
_CELL_CHARACTERS = 72


def path_argument(text: str) -> Path:
    """Return a path given on the command line."""
    try:
        return checked_path(text)
    except CheckpointError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def abandon_output() -> None:
    """Send what is left of standard output nowhere, or Python would fail on it at exit."""
    with suppress(OSError, ValueError, AttributeError):  # a stream of a test or notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Print a message to standard error."""
    print(f"castwise: {printable(text)}", file=sys.stderr)


def json_text(value: Any) -> str:
    """Make strict JSON; infinities and NaN, which it cannot say, become the strings of Python."""
    return json.dumps(_plain(value), indent=2, allow_nan=False)


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
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def show(lines: Iterable[str]) -> None:
    """Print lines to standard output, each of them printable."""
    for text in lines:
        for line in text.split("\n"):
            print(printable(line))


def tensors_text(count: int) -> str:
    """Write a number of tensors."""
    return f"{count:,} tensor{'' if count == 1 else 's'}"


def shape_text(shape: tuple[int, ...]) -> str:
    """Write a shape."""
    return "x".join(map(str, shape)) if shape else "scalar"


def table(
    header: Sequence[str],
    make_rows: Callable[[], Iterable[Sequence[str]]],
    *,
    text_columns: int,
    total: Sequence[str] | None = None,
) -> Iterator[str]:
    """Align columns line by line: the first `text_columns` to the left, numbers to the right.

    A total stands below a rule of its own.
    """

    def rows() -> Iterator[Sequence[str] | None]:
        yield header
        yield None
        for row in make_rows():
            yield [_shortened(printable(cell)) for cell in row]
        if total is not None:
            yield None
            yield total

    return aligned_lines(rows, text_columns)


def _shortened(cell: str) -> str:
    """Leave out the middle of a cell if it is too long for a table."""
    if len(cell) <= _CELL_CHARACTERS:
        return cell
    half = (_CELL_CHARACTERS - 3) // 2
    return f"{cell[:half]}...{cell[-half:]}"


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
