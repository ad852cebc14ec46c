"""Short texts for `repr`: what an object is, in at most three lines, however much it holds."""

import dataclasses
import reprlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Three lines of 80 letters.
_LETTERS = 240
# Names in a message of one line; how many are left is counted behind them.
_MAX_LISTED = 3


class _Short(reprlib.Repr):
    """Shows the ends of long texts, and the first elements of containers."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60
        self.maxtuple = self.maxlist = self.maxdict = 4
        self.maxlevel = 2


_SHORT = _Short()


def brief(instance: object, *facts: str | None) -> str:
    """Return the name of an instance's class and what is to be known of it; None is left out."""
    facts_text = ", ".join(fact for fact in facts if fact is not None)
    return f"<{type(instance).__name__} {shorten(facts_text, _LETTERS)}>"


def brief_fields(instance: object) -> str:
    """Return the `repr` of a dataclass or a named tuple, with long values cut."""
    names = getattr(instance, "_fields", None) or [
        field.name
        for field in dataclasses.fields(cast("DataclassInstance", instance))
        if field.repr
    ]
    values = (f"{name}={short(getattr(instance, name))}" for name in names)
    return f"{type(instance).__name__}({shorten(', '.join(values), _LETTERS)})"


def short(value: object) -> str:
    """Return the `repr` of a value on one line, of a text or container its ends."""
    return " ".join(_SHORT.repr(value).split())


def short_array(array: NDArray[Any]) -> str:
    """Return an array as numpy prints it, on one line, of a large one the ends."""
    return " ".join(np.array2string(array, threshold=8, edgeitems=1, separator=" ").split())


def shorten(text: str, letters: int) -> str:
    """Return a text, or its beginning and its end if it is longer than so many letters."""
    if len(text) <= letters:
        return text
    end = letters // 3
    return f"{text[: letters - end - 3]}...{text[-end:]}"


def listed(names: Iterable[str]) -> str:
    """Join names by commas; of many the first, and how many there are."""
    names = list(dict.fromkeys(names))
    text, number_left = ", ".join(names[:_MAX_LISTED]), len(names) - _MAX_LISTED
    return text if number_left <= 0 else f"{text} and {counted(number_left, 'other')}"


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, "3 tensors"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
