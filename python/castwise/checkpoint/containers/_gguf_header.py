"""The keys and values that the header of a GGUF file is written with."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

_STRING, _ARRAY = 8, 9
TEXT, COUNT, INTEGER, FLOAT, BOOL = "s", "I", "i", "f", "?"
"""The types of values that are written: text, and numbers as `struct` calls them."""

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


class Typed(str):
    """A value with its type, told by this class from texts that look like it."""

    __slots__ = ()


def typed(kind: str, value: object) -> str:
    """Return a value for the header of a new file as text of metadata; a list becomes an array.

    `kind` is one of those above, for each item of a list.
    """
    return Typed(json.dumps([kind, value], ensure_ascii=False))


def text_of(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair_of(kind: str, value: object) -> bytes:
    """Write the type of a value, and the value."""
    codes = {code: number for number, code in _SCALARS.items()} | {TEXT: _STRING}
    if not isinstance(value, list):
        return struct.pack("<I", codes[kind]) + _values(kind, [value])
    return struct.pack("<IIQ", _ARRAY, codes[kind], len(value)) + _values(kind, value)


def _values(kind: str, values: Sequence[Any]) -> bytes:
    if kind == TEXT:
        return b"".join(map(text_of, values))
    return struct.pack(f"<{len(values)}{kind}", *values)
