"""What all commands share: exit codes, messages, tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TextIO

from castwise.rendering import BARS, Sheet, printable, text_lines

OK, FINDINGS, ERROR, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

_CELL_CHARACTERS = 72
_ASCII_BARS = str.maketrans(BARS, " .:-=+*#@")
_COLUMNS = 80  # of a terminal that does not say


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


def show(lines: Iterable[str]) -> None:
    """Print lines to standard output, each of them printable."""
    for text in lines:
        for line in text.split("\n"):
            print(printable(line))


def show_sheet(sheet: Sheet, top: int | None = None) -> None:
    """Print a sheet to standard output: as wide as its terminal, and in colour if that takes it."""
    stream = sys.stdout
    width, colour = terminal_columns(stream), takes_colour(stream)
    in_ascii = not _writes_bars(stream)
    lines = text_lines(sheet, width=width, longest=_CELL_CHARACTERS, top=top, colour=colour)
    for line in lines:
        print(line.translate(_ASCII_BARS) if in_ascii else line)


def takes_colour(stream: TextIO) -> bool:
    """Return True for a terminal that shows colours; NO_COLOR, if not empty, says no."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return terminal_columns(stream) is not None


def _writes_bars(stream: TextIO) -> bool:
    """Return True if the encoding of a stream has the letters of histograms."""
    try:
        BARS.encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError, AttributeError):
        return False
    return True


def terminal_columns(stream: TextIO) -> int | None:
    """Return the width of a stream's own terminal; None if it is not one."""
    try:
        if not stream.isatty():
            return None
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except (OSError, ValueError, AttributeError):  # a stream of a test or notebook
        return None
