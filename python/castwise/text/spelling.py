"""Find what a name means, or the known name that a wrong one may have meant."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from castwise._core import finfo, format_name, formats, gguf_type, likely_names, nearest_texts

Dtype = TypeVar("Dtype")

# Codes of numpy, as `<f4` and `|u1`; complex numbers have 8 or 16 bytes.
_BYTE_COUNT = r"[<>=|]?(?P<kind>[fiubc])(?P<nbytes>[1248]|(?<=c)16)"
_KINDS = {"f": "float", "i": "int", "u": "uint"}
# The bits of what torch calls so, where numpy calls a wider format so.
_OF_TORCH = {"float": 32, "int": 32}


_FOR_ARRAYS = "for arrays, but not for checkpoints:"


def typed_format(name: Dtype, argument: str) -> Dtype:
    """Return a dtype that is given for a checkpoint, unless numpy alone knows its name."""
    # The names of the table, "fp8" and "torch.bfloat16" among them, mean the same everywhere. Where
    # arrays are cast as by `astype`, numpy's further names are taken too. Of a checkpoint they are
    # refused: f8, which others give to float8, counts bytes in numpy, and is float64.
    if not isinstance(name, str) or format_name(name) is not None:
        return name
    try:
        dtype = finfo(name).name
    except TypeError:  # a policy or "keep"; or it is refused where it is used
        return name
    byte_count = re.fullmatch(_BYTE_COUNT, name)
    if byte_count is None:
        bits = _OF_TORCH.get(name)
        alias = f", or '{name}{bits}', which torch calls so" if bits else ""
        raise TypeError(
            argument
            + f": {_FOR_ARRAYS} {name!r} is numpy's name of {dtype}; write {dtype!r}{alias}"
        )
    number = byte_count["nbytes"]
    short = _KINDS.get(byte_count["kind"], "none") + number
    unit = "bit" if number == "1" else "bits"
    nearby = format_name(short) or next((row for row in formats() if row.startswith(short)), None)
    short_hint = f", or for {number} {unit} {nearby!r}" if nearby else ""
    raise TypeError(
        argument + f": {_FOR_ARRAYS} {name!r} counts bytes, as numpy does; write "
        f"{dtype!r}{short_hint}"
    )


def typed_values(mapping: Mapping[Any, Any], origin: str = "map") -> dict[Any, Any]:
    """Return a map of which each value is as `typed_format` returns it."""
    first_keys: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, str):
            first_keys.setdefault(value, key)
    for value, key in first_keys.items():
        typed_format(value, f"{origin}: key {key!r}")
    return {**mapping}


# The most names that are suggested.
_SUGGESTED = 3


def suggestion(name: object, choices: Iterable[str]) -> str:
    """Ask for the known names that a wrong one probably means, "" if none is spelled like it."""
    likely = likely_names(name, list(choices))[:_SUGGESTED] if isinstance(name, str) else []
    return f"did you mean {' or '.join(map(repr, likely))}? " if likely else ""


def format_hint(name: object) -> str:
    """Say that a name is a format, where the name of something else is asked for; else ""."""
    row = format_name(name) if isinstance(name, str) else None
    if row is None:
        return ""
    return f"{name!r} is a format, " if row == name else f"{name!r} is a format, {row}, "


def scheme_hint(name: object, choices: Iterable[str]) -> str:
    """Say what a name that is none of the schemes may mean; ends with a space, or is empty."""
    if isinstance(name, str) and (meaning := gguf_type(name)) is not None:
        return f"{name!r} is {meaning}; "
    hint = format_hint(name)
    scales = "and a scheme stores scales, too: " if hint else ""
    return f"{hint}{scales}{suggestion(name, choices)}"


def nearest(wrong: Iterable[str], choices: Iterable[str]) -> dict[str, str | None]:
    """Map each wrong name to the known name that is spelled most like it, or None."""
    names, candidates = list(wrong), list(choices)
    places = nearest_texts(names, candidates)
    return {
        name: None if place is None else candidates[place]
        for name, place in zip(names, places, strict=True)
    }


def unused_patterns(hits: Mapping[str, int], known_names: Iterable[str]) -> dict[str, str | None]:
    """Map each unused pattern, one without hits, to the seen name that is spelled most like it."""
    return nearest([pattern for pattern, count in hits.items() if count == 0], known_names)
