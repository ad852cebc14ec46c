r"""Which array becomes which format: `default` plus regular expressions.

```json
{"default": "bfloat16", ".*norm.*": "float32", "lm_head\\.weight": "keep"}
```

A key must match the whole name of an array (`re.fullmatch`): of a tensor in a checkpoint, or the
path of a leaf in a tree. A name that two keys match is an error, so the order of the keys means
nothing. `"keep"` leaves an array as it is.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from castwise._core import finfo

KEEP = "keep"
"""What stands in the place of a format for arrays to be left as they are."""

DEFAULT = "default"
"""The key for floating arrays that no other key matches."""


@dataclass(frozen=True, slots=True)
class DtypeMap:
    """A checked map; targets are names of the table, or None for "keep".

    Attributes
    ----------
    default
        Format of floating arrays that no pattern matches, None to keep them.
    patterns
        Regular expression to target.
    origin
        What to call the map in errors.

    """

    default: str | None
    patterns: Mapping[re.Pattern[str], str | None]
    origin: str = "map"

    @classmethod
    def of_one(cls, dtype: Any) -> DtypeMap:
        """The map that gives every floating array one format; TypeError if it is none."""
        return cls(_target(dtype), {}, "dtype")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], origin: str = "map") -> DtypeMap:
        """Check a mapping of patterns (and `default`) to dtypes.

        Raises
        ------
        ValueError
            A key is no regular expression; the message has key and position.
        TypeError
            A value is no format; the message has the key and the nearest names.

        """
        default: str | None = None
        patterns: dict[re.Pattern[str], str | None] = {}
        for key, value in mapping.items():
            if not isinstance(key, str):
                raise TypeError(f"{origin}: key {key!r} is not a str; keys are regular expressions")
            if isinstance(value, Mapping):
                raise TypeError(
                    f"{origin}: key {key!r} holds a table, not a format; "
                    "in TOML, put a pattern with dots in quotes"
                )
            try:
                target = _target(value)
            except TypeError as error:
                raise TypeError(f"{origin}: key {key!r}: {error}") from error
            if key == DEFAULT:
                default = target
            else:
                patterns[_pattern(key, origin)] = target
        return cls(default, patterns, origin)

    @classmethod
    def from_file(cls, path: Path) -> DtypeMap:
        """Read a map from a `.json` or `.toml` file.

        Raises
        ------
        ValueError
            It is neither JSON nor TOML, or has a key twice.
        ValueError, TypeError
            As `from_mapping`.
        OSError
            It cannot be read.

        """
        parse = _PARSERS.get(path.suffix.lower())
        if parse is None:
            raise ValueError(f"{path}: a map is a file with the suffix {' or '.join(_PARSERS)}")
        try:
            mapping = parse(path.read_text("utf-8-sig"))
        except (ValueError, RecursionError) as error:  # each library's own error is a ValueError
            raise ValueError(f"{path}: {error}") from error
        if not isinstance(mapping, dict):
            raise TypeError(f"{path}: a map is one object of pattern to format")
        return cls.from_mapping(mapping, str(path))

    def find(self, name: str) -> tuple[str, str | None] | None:
        """The pattern that matches `name` and its target; None if there is none.

        Raises
        ------
        ValueError
            Several patterns match; the message has them all.

        """
        matches = [
            (pattern.pattern, target)
            for pattern, target in self.patterns.items()
            if pattern.fullmatch(name)
        ]
        if len(matches) > 1:
            keys = " and ".join(repr(pattern) for pattern, _ in matches)
            raise ValueError(
                f"{self.origin}: {name!r} is matched by {len(matches)} keys, {keys}; "
                "make them exclude each other"
            )
        return matches[0] if matches else None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} stands twice")
    return mapping


def _parse_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_without_duplicates)


_PARSERS: dict[str, Callable[[str], Any]] = {".json": _parse_json, ".toml": tomllib.loads}


def _pattern(key: str, origin: str) -> re.Pattern[str]:
    try:
        return re.compile(key)
    except re.error as error:
        raise ValueError(
            f"{origin}: key {key!r} is no regular expression: {error.msg} "
            f"at position {error.pos or 0}"
        ) from error


def _target(value: Any) -> str | None:
    if isinstance(value, str) and value == KEEP:
        return None
    row = finfo(value)
    if row.dtype is None:
        raise TypeError(f"{row.name} has no numpy dtype in the installed ml_dtypes")
    name: str = row.name
    return name
