"""What all commands share: exit codes, messages, tables for people, JSON for programs."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TextIO

from castwise.rendering.sheet import BARS, Lines, Sheet
from castwise.rendering.text import CUT, printable, text_lines
from castwise.text.wording import command_words, for_command

# Shells report 128 and the number of a signal: SIGINT is 2, SIGPIPE 13.
OK, FINDINGS, ERROR, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

# When tables are in color: as the terminal takes it, or whatever it is.
COLORS = ("auto", "always", "never")

# What argparse is told of --color.
COLOR_OPTION: Mapping[str, Any] = {
    "choices": COLORS,
    "default": COLORS[0],
    "help": "whether tables are in color: on a terminal, unless NO_COLOR is set (auto, the "
    "default), always or never",
}

# What a cell of a table has at most: names of tensors may have any length.
_CELL_CHARACTERS = 72
_ASCII = str.maketrans(BARS + CUT, " .:-=+*#@~")
_COLUMNS = 80  # of a terminal that does not say


def abandon_output(stream: TextIO | None = None) -> None:
    """Send what is left of a stream nowhere, or Python would fail on it at exit."""
    # Without one that is standard output.
    with suppress(OSError, ValueError, AttributeError):  # a stream of a test or notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), (stream or sys.stdout).fileno())


def say(text: str) -> None:
    """Print a message to standard error, after the name of the program."""
    # Where that is full, or nobody reads it, the exit code still tells how the command ended.
    try:
        print(f"castwise: {printable(for_command(text))}", file=sys.stderr)
    except (OSError, ValueError):
        abandon_output(sys.stderr)


def reason_of(error: Exception) -> str:
    """Return what an error says, without the file that it is about."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def json_text(make: Callable[[], object]) -> str:
    """Make strict JSON, without infinities and NaN, of values with the command's words."""
    # `make` returns them, by `to_dict`.
    with command_words():
        return json.dumps(make(), indent=2, allow_nan=False)


def worded(value: Any) -> Any:  # noqa: ANN401  (of any kind)
    """Return plain values with the texts of the command."""
    if isinstance(value, dict):
        return {key: worded(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(worded, value))
    return for_command(value) if isinstance(value, str) else value


def worded_sheet(sheet: Sheet) -> Sheet:
    return [
        replace(part, texts=[*map(for_command, part.texts)]) if isinstance(part, Lines) else part
        for part in sheet
    ]


def show(lines: Iterable[str]) -> None:
    """Print lines to standard output, each of them printable."""
    for text in lines:
        for line in for_command(text).split("\n"):
            print(printable(line))


def show_sheet(sheet: Sheet, options: argparse.Namespace) -> None:
    """Print a sheet to standard output: as wide as its terminal, and in color if that takes it."""
    # COLUMNS in the environment says the width of what is no terminal, too. Of the options, --color
    # says whether, and --top, if the command has it, how many rows.
    stream, top = sys.stdout, getattr(options, "top", None)
    width, color = _columns() or terminal_columns(stream), takes_color(stream, options.color)
    in_ascii = not _writes_bars(stream)
    lines = text_lines(
        worded_sheet(sheet), width=width, longest=_CELL_CHARACTERS, top=top, color=color
    )
    for line in lines:
        print(line.translate(_ASCII) if in_ascii else line)


def _columns() -> int | None:
    """Return what COLUMNS in the environment says of the width; None if it says nothing."""
    text = os.environ.get("COLUMNS", "")
    return int(text) or None if text.isascii() and text.isdigit() else None


def takes_color(stream: TextIO, when: str) -> bool:
    """Return True for a terminal that shows colors, or whatever --color says."""
    # NO_COLOR, if not empty, says no where --color does not say.
    if when != COLORS[0]:
        return when == COLORS[1]
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return terminal_columns(stream) is not None


def _writes_bars(stream: TextIO) -> bool:
    """Return True if the encoding of a stream has the letters of tables."""
    try:
        (BARS + CUT).encode(stream.encoding or "utf-8")
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
