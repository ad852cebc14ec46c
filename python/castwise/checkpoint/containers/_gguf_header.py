"""The keys and values of the header of a GGUF file, read and written."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.files._source_files import SourceFile

_MAX_TEXT = 64 << 20
_AHEAD = 1 << 18
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
_LAYOUTS = {code: struct.Struct("<" + code) for code in _SCALARS.values()}


class Cursor:
    """Reads a header from a byte on, never more than the file has."""

    def __init__(self, file: SourceFile, at: int = 0) -> None:
        self._file = file
        self._window, self._begin = b"", at
        self.at = at

    def take(self, count: int) -> bytes:
        skip = self.at - self._begin
        if skip + count > len(self._window):
            self._window = self._file.read(self.at, max(count, _AHEAD))
            self._begin, skip = self.at, 0
        data = self._window[skip : skip + count]
        self.at += count
        if len(data) < count:
            raise CheckpointError("truncated in its header")
        return data

    def number(self, code: str) -> Any:
        layout = _LAYOUTS[code]
        return layout.unpack(self.take(layout.size))[0]

    def text(self) -> str:
        count = self.number("Q")
        if count > _MAX_TEXT:
            raise CheckpointError(f"a text of {count:,} bytes in its header")
        try:
            return self.take(count).decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"a text in its header is not UTF-8: {error.reason}") from error

    def value(self, kind: int) -> Any:
        """Read a value; an array is skipped, and None."""
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _ARRAY:
            raise CheckpointError(f"a value of the type {kind}, which GGUF does not have")
        inner, count = self.number("I"), self.number("Q")
        if inner in _SCALARS:
            self.at += count * struct.calcsize("<" + _SCALARS[inner])
            if self.at > self._file.size:
                raise CheckpointError("truncated in its header")
        elif inner == _STRING:
            for _ in range(count):
                self.text()
        else:
            raise CheckpointError("an array of arrays in its header")
        return None

    def array(self) -> list[Any]:
        """Read an array that was skipped before."""
        inner, count = self.number("I"), self.number("Q")
        if inner == _STRING:
            return [self.text() for _ in range(count)]
        layout = f"<{count}{_SCALARS[inner]}"
        return list(struct.unpack(layout, self.take(struct.calcsize(layout))))


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
