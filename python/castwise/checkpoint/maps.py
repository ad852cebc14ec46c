"""The maps that come with castwise, by name: what common families of models keep (maps.toml)."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from castwise._dtype_map import DtypeMap
from castwise._spelling import format_hint, suggestion
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
    path = Path(text)
    return text != "" and path.name == text and not path.suffix


def named_map(name: str) -> DtypeMap:
    """Return a map that comes with castwise; raises as `named_mapping`."""
    return replace(DtypeMap.from_mapping(named_mapping(name), f"map {name!r}"), is_general=True)


def named_mapping(name: str) -> dict[str, Any]:
    """Return the patterns of a map that comes with castwise.

    Raises
    ------
    CheckpointError
        There is none of that name; the message has the nearest ones, and all.

    """
    table = _tables().get(name)
    if table is None:
        hint = format_hint(name)
        remedy = f"{hint}which a dtype (--dtype) is; " if hint else ""
        raise CheckpointError(
            f"there is no map {name!r}; {remedy}{suggestion(name, map_names())}castwise has "
            f"{', '.join(map_names())}; the name of a file ends with .toml or .json"
        )
    return dict(table)


def refuse_map_name(argument: str, value: Any) -> None:
    """Raise CheckpointError if a name that is given for something else is that of a map."""
    if isinstance(value, str) and value in map_names():
        raise CheckpointError(
            f"{argument}={value!r} is a map that says what to keep; give it as dtype_map (--map), "
            "beside a dtype"
        )


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads(_FILE.read_text("utf-8"))
