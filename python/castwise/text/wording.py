"""Texts that name arguments: those of a function, which hold the command's words beside theirs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

# What the command line calls arguments that are not options of the same name.
_OPTIONS = {"dtype_map": "--map", "source": "SRC", "destination": "DST", "consumer": "--for"}

_NO_VALUE = object()


# Sums with other texts keep both, and so does `str`, also of an error; an f-string, which copies
# letters, has the function's alone. The command line, where it prints, calls `for_command`.
class Wording(str):
    """A text as a function words it, which it is, and as the command words it."""

    command: str

    def __new__(cls, text: str, command: str) -> Wording:
        wording = super().__new__(cls, text)
        wording.command = command
        return wording

    def __reduce__(self) -> tuple[type[Wording], tuple[str, str]]:
        """Let errors that hold one go to another process."""
        return Wording, (super().__str__(), self.command)

    def __str__(self) -> Wording:
        return self

    def __add__(self, text: str) -> Wording:
        return Wording(super().__add__(text), self.command + for_command(text))

    def __radd__(self, text: str) -> Wording:
        return Wording(text + super().__str__(), text + self.command)


def for_command(text: str) -> str:
    return text.command if isinstance(text, Wording) else text


_IS_COMMAND = ContextVar("castwise_words_of_the_command", default=False)


@contextmanager
def command_words() -> Iterator[None]:
    """Let `plain` word texts as the command does, for a block of this thread."""
    token = _IS_COMMAND.set(True)
    try:
        yield
    finally:
        _IS_COMMAND.reset(token)


def plain(text: str) -> str:
    """Return a text as a plain str, which has one wording: the function's."""
    return for_command(text) if _IS_COMMAND.get() else str.__str__(text)


def join(separator: str, texts: Iterable[str]) -> Wording:
    texts = list(texts)
    return Wording(separator.join(texts), separator.join(map(for_command, texts)))


def argument(
    name: str, value: object = _NO_VALUE, *, option: str | None = None, typed: object = _NO_VALUE
) -> Wording:
    """Name an argument, and the value that it has or should have.

    `name`: its name in Python.
    `value`: its value; True of a switch.
    `option`: what the command line calls it, if the table does not tell.
    `typed`: its value as it is typed after the option, if that is not the text of the value.

    Examples
    --------
    >>> size, part = argument("max_shard_size"), argument("part", "3")
    >>> size, part, argument("overwrite", True)
    ('max_shard_size', "part='3'", 'overwrite=True')
    >>> for_command(size), for_command(part), for_command(argument("overwrite", True))
    ('--max-shard-size', '--part 3', '--overwrite')

    """
    text = name if value is _NO_VALUE else f"{name}={value!r}"
    return Wording(text, _option(name, option, value if typed is _NO_VALUE else typed))


def parenthesis(
    name: str, value: object = _NO_VALUE, *, option: str | None = None, typed: object = _NO_VALUE
) -> Wording:
    """Name an argument in parentheses, as the means of what a sentence advises."""
    return "(" + argument(name, value, option=option, typed=typed) + ")"


def _option(name: str, option: str | None, value: object) -> str:
    option = option or _OPTIONS.get(name) or f"--{name.replace('_', '-')}"
    return option if value is _NO_VALUE or value is True else f"{option} {value}"


def check_switch(name: str, value: object) -> None:
    """Refuse a value of a switch that is not a bool: "no" is true."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(setting(name, value) + " is not valid; use True or False")


def setting(
    name: str, value: object, *, option: str | None = None, typed: object = _NO_VALUE
) -> Wording:
    r"""Name an argument and the value that the caller gave, as the subject of a sentence.

    Examples
    --------
    >>> setting("ignore", r"lm\.head")
    "ignore 'lm\\\\.head'"
    >>> print(for_command(setting("ignore", r"lm\.head")))
    --ignore lm\.head

    """
    return Wording(f"{name} {value!r}", argument(name, value, option=option, typed=typed).command)


def quote(text: object) -> Wording:
    """Quote what the caller wrote: as Python does, or as it was typed, without its escapes."""
    return Wording(repr(text), f"'{text}'" if isinstance(text, str) else repr(text))


def function(name: str) -> Wording:
    """Name a conversion: the function, or the command."""
    return Wording(f"checkpoint.{name}_file", f"castwise {name}")


# How messages of the core write arguments: with texts in double quotes, as Python does not.
_CORE = (
    r"""(?<![\w/'"])(?P<name>dtype|policy|overflow|nan|rounding|seed|threads)="""
    r"""(?:"(?P<text>[^"]*)"(?: or "(?P<other>[^"]*)")?|(?P<number>-?\d+)|(?=\s))"""
    r"""(?:, or a scale)?"""
)


def reword_core(text: str) -> Wording:
    """Take a message that may be the core's, which writes arguments as a function words them."""
    if isinstance(text, Wording):
        return text

    def option(match: re.Match[str]) -> str:
        value = match["number"] if match["text"] is None else match["text"]
        option_text = _option(match["name"], None, _NO_VALUE if value is None else value)
        return option_text if match["other"] is None else f"{option_text} or {match['other']}"

    command = re.sub(_CORE, option, text.replace("castwise.formats()", "castwise formats"))
    return Wording(text, command)


def word_key_error(subject: str, error: Exception) -> Wording:
    """Return the message of a map of patterns about one key, which it calls by its escapes."""
    _, is_about_key, rest = str(error).partition("' is ")
    return subject + (
        reword_core(f" is {rest}") if is_about_key else ": " + reword_core(str(error))
    )


# What errors of saved states call castwise's class, on which a dialect's class is built.
_OWNER = "DynamicLossScale with preset="


@contextmanager
def rename_arguments(*, owner: str | None = None, **names: str) -> Iterator[None]:
    """Rename the argument that an error of the block begins with, as in ``argument=value ...``."""
    # `owner` is the class whose state is loaded, for errors about its keys. Other errors than
    # TypeError and ValueError, and subclasses of these, pass as they are.
    try:
        yield
    except (TypeError, ValueError) as error:
        text = str(error)
        name, equals, rest = text.partition("=")
        if equals and name in names:
            text = f"{names[name]}={rest}"
        if owner is not None and _OWNER in text:
            prefix, _, rest = text.partition(_OWNER)
            _, _, keys = rest.partition(" ")
            text = f"{prefix}{owner} {keys}".replace("class and preset", "class")
        if text == str(error) or type(error) not in {TypeError, ValueError}:
            raise
        raise type(error)(text) from error.__cause__
