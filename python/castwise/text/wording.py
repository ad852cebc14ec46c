"""Say arguments as the caller gave them: by the names of Python, or as options of a command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_OPTIONS = {
    "dtype_map": "--map",
    "source": "SRC",
    "destination": "DST",
    "consumer": "--for",
}
"""What the command line calls arguments that are not options of the same name."""

_commands: list[str] = []
"""The commands that are carried out; messages are theirs as long as there is one."""

_UNSAID = object()


@contextmanager
def worded_for_command(name: str) -> Iterator[None]:
    """Let messages of the block, in all threads, be those of a command."""
    _commands.append(name)
    try:
        yield
    finally:
        _commands.pop()


def is_for_command() -> bool:
    """Return True while messages are those of a command."""
    return bool(_commands)


def argument(name: str, value: object = _UNSAID, *, option: str | None = None) -> str:
    """Say an argument, and the value that it has or should have.

    `name`: its name in Python.
    `value`: its value; True of a switch.
    `option`: what the command line calls it, if the table does not tell.

    Examples
    --------
    >>> argument("max_shard_size"), argument("part", "3"), argument("overwrite", True)
    ('max_shard_size', "part='3'", 'overwrite=True')
    >>> with worded_for_command("cast"):
    ...     argument("max_shard_size"), argument("part", "3"), argument("overwrite", True)
    ('--max-shard-size', '--part 3', '--overwrite')

    """
    if not _commands:
        return name if value is _UNSAID else f"{name}={value!r}"
    called = option or _OPTIONS.get(name) or f"--{name.replace('_', '-')}"
    return called if value is _UNSAID or value is True else f"{called} {value}"


def check_switch(name: str, value: object) -> None:
    """Refuse a value of a switch that is not a bool: "no" is true."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{given(name, value)} is not valid; use True or False")


def given(name: str, value: object, *, option: str | None = None) -> str:
    r"""Say an argument and the value that the caller gave, as the subject of a sentence.

    Examples
    --------
    >>> given("ignore", r"lm\.head")
    "ignore 'lm\\\\.head'"
    >>> with worded_for_command("quantize"):
    ...     print(given("ignore", r"lm\.head"))
    --ignore lm\.head

    """
    return argument(name, value, option=option) if _commands else f"{name} {value!r}"


def quoted(text: object) -> str:
    """Quote what the caller wrote: as Python does, or as it was typed, without its escapes."""
    return f"'{text}'" if _commands and isinstance(text, str) else repr(text)


_CORE = re.compile(
    r"""(?<![\w/'"])(?P<name>dtype|policy|overflow|nan|rounding|seed|threads)="""
    r"""(?:"(?P<text>[^"]*)"(?: or "(?P<other>[^"]*)")?|(?P<number>-?\d+)|(?=\s))"""
)
"""How messages of the core write arguments: with texts in double quotes, as Python does not."""

_FUNCTIONS = {"castwise.formats()": "castwise formats"}
"""What the core asks to call, and the command that does it."""


_SCALE = ", or a scale"
"""A remedy of the core for arrays, which no command has."""


def of_core(text: str) -> str:
    """Return a message as a command has it, in which the core wrote arguments as in Python."""
    if not _commands:
        return text
    for function, command in _FUNCTIONS.items():
        text = text.replace(function, command)
    text = text.replace(_SCALE, "")

    def option(match: re.Match[str]) -> str:
        value = match["number"] if match["text"] is None else match["text"]
        said = argument(match["name"], *([] if value is None else [value]))
        return said if match["other"] is None else f"{said} or {match['other']}"

    return _CORE.sub(option, text)


def about(subject: str, error: Exception) -> str:
    """Return the message of a map of patterns about one key, which it calls by its escapes."""
    _, is_about_key, rest = str(error).partition("' is ")
    return f"{subject} is {rest}" if is_about_key else f"{subject}: {error}"


def function(name: str) -> str:
    """Say a conversion: the function, or the command."""
    return f"castwise {name}" if _commands else f"checkpoint.{name}_file"
