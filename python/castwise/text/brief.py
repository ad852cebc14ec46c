"""Short texts for `repr`, of at most three lines, and the plain values of fields for JSON."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from castwise.text.wording import plain

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


# Metadata of a field that is of castwise alone.
LEFT_OUT: Mapping[str, bool] = {"left out": True}


def plain_fields(instance: DataclassInstance, **properties: str) -> dict[str, Any]:
    """Return the fields for JSON, and properties after the fields that they name."""
    # A number that is not finite is text.
    names = [field.name for field in dataclasses.fields(instance) if not field.metadata]
    for name, before in properties.items():
        names.insert(names.index(before) + 1, name)
    return {name: _plain(getattr(instance, name)) for name in names}


def plain_dict(instance: DataclassInstance) -> dict[str, Any]:
    """Return plain values for JSON."""
    return plain_fields(instance)


def _plain(value: Any) -> Any:  # noqa: ANN401  (of any field)
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, tuple | list):
        return [*map(_plain, value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain_fields(value)
    if isinstance(value, str):
        return plain(value)
    return plain_number(value) if isinstance(value, float) else value


def plain_number(value: float | None) -> float | str | None:
    """Return a number for JSON; text if it is not finite."""
    return value if value is None or math.isfinite(value) else str(value)
