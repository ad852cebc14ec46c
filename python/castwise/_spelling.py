"""Find what a name means, or the known name that a wrong one may have meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from castwise._core import finfo, formats, nearest_texts

_FAMILY = "float8"
_NAMES = frozenset((_FAMILY, "fp8"))
_BYTE_COUNT = re.compile(r"[<>=|]?(?P<kind>[fiubc])(?P<nbytes>[1248]|(?<=c)16)")
_KINDS = {"f": "float", "i": "int", "u": "uint"}


def checkpoint_format(name: Any) -> Any:
    """Return the format that users of checkpoints mean by fp8 and float8; other values unchanged.

    Those are the names that model files and inference servers give to float8_e4m3fn.
    """
    return _float8() if isinstance(name, str) and name.lower() in _NAMES else name


@cache
def _float8() -> str:
    """Return the first of the family for which safetensors files have a code."""
    rows = (finfo(name) for name in formats() if name.startswith(_FAMILY))
    return next(row.name for row in rows if row.safetensors is not None)


def typed_format(name: Any, what: str) -> Any:
    """Return the format that a person types, as `checkpoint_format`.

    Raises
    ------
    TypeError
        The name counts bytes, as numpy's do, where another reader counts bits: numpy's f8 is
        float64. The message calls the name `what`.

    """
    counted = _BYTE_COUNT.fullmatch(name) if isinstance(name, str) else None
    if counted is None:
        return checkpoint_format(name)
    meant = finfo(name).name
    bits = counted["nbytes"]
    short = _KINDS.get(counted["kind"], "none") + bits
    named = [one for one in formats() if one == short or one.startswith(f"{short}_")]
    named.sort(key=lambda one: one != _float8())
    unit = "bit" if bits == "1" else "bits"
    other = f", or for {bits} {unit} {named[0]!r}" if named else ""
    raise TypeError(f"{what}: {name!r} counts bytes, as numpy does; write {meant!r}{other}")


def nearest(wanted: Iterable[str], known: Iterable[str]) -> dict[str, str | None]:
    """Map each wrong name to the known name that is spelled most like it, or None."""
    names, there = list(wanted), list(known)
    places = nearest_texts(names, there)
    return {
        name: None if place is None else there[place]
        for name, place in zip(names, places, strict=True)
    }


def unused(hits: Mapping[str, int], seen: Iterable[str]) -> dict[str, str | None]:
    """Map each unused pattern, one without hits, to the seen name that is spelled most like it."""
    return nearest([pattern for pattern, count in hits.items() if count == 0], seen)
