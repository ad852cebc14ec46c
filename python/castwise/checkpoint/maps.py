"""The maps that come with castwise, by name: what common families of models keep (maps.toml)."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from castwise._dtype_map import DtypeMap
from castwise._spelling import nearest
from castwise.checkpoint._errors import CheckpointError

_FILE = Path(__file__).with_name("maps.toml")


def map_names() -> tuple[str, ...]:
    """Return the names of the maps that come with castwise.

    They say what the models of a family keep, and take the format of all other floating tensors
    from `dtype`.

    Examples
    --------
    >>> map_names()
    ('llama', 'bert', 'gpt2', 't5', 'whisper', 'vit', 'mamba')

    """
    return tuple(_tables())


def is_map_name(text: str) -> bool:
    """Return True if a text is a name, rather than the path of a file, which has a suffix."""
    return text.isidentifier()


def named_map(name: str) -> DtypeMap:
    """Return a map that comes with castwise.

    Raises
    ------
    CheckpointError
        There is none of that name; the message has the nearest one, and all.

    """
    table = _tables().get(name)
    if table is None:
        names = map_names()
        raise CheckpointError(
            f"there is no map {name!r}; did you mean {nearest([name], names)[name]!r}? castwise "
            f"has {', '.join(names)}; the name of a file ends with .toml or .json"
        )
    return replace(DtypeMap.from_mapping(table, f"map {name!r}"), is_general=True)


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads(_FILE.read_text("utf-8"))
