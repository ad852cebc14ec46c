"""Read files that a user gives, and those in JSON and TOML: maps, policies, groups, numbers.

They may come from anybody: what is no regular file, larger than the caller knows that it may be, or
takes time or memory out of proportion to parse, is refused.
"""

import json
import os
import re
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

# A pipe is opened without waiting for its writer; what it is is then asked of the open file.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
# A file that states no size, as those of /proc, is read no further than its limit.
_PIECE_BYTES = 1 << 16


class NotRegularError(ValueError):
    """A path leads to a folder, pipe, socket or device, or to more bytes than may be read."""


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file to read its bytes; links are followed."""
    _check(os.stat(path).st_mode, path)  # opening a device can already do something
    descriptor = os.open(path, _FLAGS)
    try:
        _check(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the bytes of a regular file, of which there may be at most `most`."""
    data = bytearray()  # in pieces, as a file is asked for all takes the memory of all it may have
    with open_regular(path) as file:
        while len(data) <= most and (piece := file.read(_PIECE_BYTES)):
            data += piece
    return checked_size(bytes(data), path, most)


def checked_size(data: bytes, path: str | os.PathLike[str], most: int) -> bytes:
    """Return bytes that were read of a file, of which there may be at most `most`."""
    if len(data) > most:
        raise NotRegularError(f"{path} has more than {most:,} bytes, the most that is read of it")
    return data


def _check(mode: int, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(mode):
        raise NotRegularError(f"{Path(path)} is not a regular file; give one")


_TOML = ".toml"
# Of the files that have one of the two formats by their names.
SUFFIXES = (".json", _TOML)


# Of a file: 50,000 keys; parsed, a byte of JSON can take 60.
MOST_BYTES = 4 << 20


def parsed_file(path: Path) -> Any:  # noqa: ANN401  (of JSON)
    return parse_bytes(read_regular(path, MOST_BYTES), path)


def parse_bytes(data: bytes, path: Path) -> Any:  # noqa: ANN401  (of JSON)
    """Return what the bytes of a file hold: of TOML if it is named so, else of JSON."""
    text = _decode(data, path)
    try:
        if path.suffix.lower() == _TOML:
            return _parse_toml(text)
        return json.loads(text, object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:  # each library's own error is a ValueError
        raise ValueError(f"{path}: {error}") from error


def parsed_mapping(path: Path, content: str) -> dict[str, Any]:
    """Return the mapping in a `.json` or `.toml` file of this machine."""
    if path.suffix.lower() not in SUFFIXES:
        path.stat()  # a file that is missing is no matter of suffixes
        raise ValueError(f"{path}: a map is a file with the suffix {' or '.join(SUFFIXES)}")
    mapping = parsed_file(path)
    if not isinstance(mapping, dict):
        raise TypeError(f"{path}: a map is one object of {content}")
    return mapping


def text_in(path: Path) -> str:
    """Read a file; ValueError if it is not a regular one, is too large, or is not UTF-8."""
    return _decode(read_regular(path, MOST_BYTES), path)


def _decode(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        position = f"byte {error.object[error.start]:#04x} at {error.start}"
        raise ValueError(f"{path} is not UTF-8 ({position}); save it as UTF-8") from error


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of JSON, of which `json.loads` gives the members; each key stands once."""
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f"key {key!r} stands twice")
        mapping[key] = value
    return mapping


def _parse_toml(text: str) -> object:
    # tomllib's memory grows with the square of the parts of a dotted key.
    dots = sum(token[0] == "." for token in re.finditer(_TOML_PIECE, text))
    if dots > _MOST_DOTS:
        raise ValueError(
            f"it has {dots:,} dots outside of quotes, and a map needs none; "
            "put a pattern with dots in quotes"
        )
    import tomllib  # noqa: PLC0415  (a millisecond, for TOML alone)

    return tomllib.loads(text)


# Texts, comments, and what stands between them; dots by themselves.
_TOML_PIECE = (
    r'(?s)"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*+"|'
    r"'''.*?'''|'[^'\n]*+'|#[^\n]*+|[^\"'#.]++|."
)

_MOST_DOTS = 1000
