"""The maps that come with castwise, by name: what common families of models keep (maps.toml)."""

import logging
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from castwise._core import PolicyMap
from castwise.arrays.dtype_map import DtypeMap
from castwise.checkpoint._errors import CheckpointError
from castwise.text.spelling import format_hint, suggestion
from castwise.text.wording import argument, parenthesis

_LOGGER = logging.getLogger(__name__)
_FILE = Path(__file__).with_name("maps.toml")
_KEEP = "keep"
_MATRIX = 2  # axes; what has fewer is one number per channel


class _Family(NamedTuple):
    """What a map is for, and what it keeps."""

    about: str
    keep: tuple[str, ...]
    kept_by_all: tuple[str, ...]  # the patterns of every map


def map_names() -> tuple[str, ...]:
    """Return the names of the maps that come with castwise.

    Each map lists the tensors that models of a family keep. All other floating tensors get the
    format of `dtype`.

    Examples
    --------
    >>> map_names()
    ('llama', 'bert', 'gpt2', 't5', 'whisper', 'vit', 'mamba')

    """
    return tuple(_families())


def is_map_name(text: str) -> bool:
    """Return True if a text is a name, rather than the path of a file, which has a suffix."""
    path = Path(text)
    return text != "" and path.name == text and not path.suffix


def named_map(name: str) -> DtypeMap:
    """Return a map that comes with castwise."""
    family = _families().get(name)
    if family is None:
        hint = format_hint(name)
        remedy = f"{hint}which a dtype " + parenthesis("dtype") + " is; " if hint else ""
        raise CheckpointError(
            f"there is no map {name!r}; " + remedy + f"{suggestion(name, map_names())}castwise has "
            f"{', '.join(map_names())}; the name of a file ends with .toml or .json"
        )
    keys = PolicyMap("fullmatch", "first")  # all keep, so it does not matter which one matches
    for pattern in dict.fromkeys((*family.keep, *family.kept_by_all)):
        keys.insert(pattern, None)
    return DtypeMap(
        None, keys, f"map {name!r}", has_default=False, is_general=True, least_axes=_MATRIX
    )


def refuse_map_name(name: str, value: object) -> None:
    """Refuse the name of a map as the value of another argument."""
    if isinstance(value, str) and value in map_names():
        raise CheckpointError(
            argument(name, value)
            + " is a map that says what to keep; give it as "
            + argument("dtype_map")
            + ", beside "
            + argument("dtype")
        )


def warn_of_other_models(name: str, used: Collection[str | None], unknown: Sequence[str]) -> None:
    """Say what a map is for if castwise does not know a model and none of its names is theirs."""
    family = _families()[name]
    if not unknown or any(pattern in used for pattern in family.keep):
        return
    kind = f" (model_type {unknown[0]!r})" if unknown[0] else ""
    _LOGGER.warning(
        "map %r is for %s; castwise does not know this model%s, and no tensor has a name of an "
        "embedding or head of theirs; see what is kept by a dry run (%s)",
        name,
        family.about,
        kind,
        argument("dry_run"),
    )


@cache
def _families() -> dict[str, _Family]:
    import tomllib  # noqa: PLC0415  (a millisecond, for maps alone)

    tables: dict[str, Any] = tomllib.loads(_FILE.read_text("utf-8"))
    common = tables.pop(_KEEP)
    return {
        name: _Family(table["about"], tuple(table[_KEEP]), tuple(common))
        for name, table in tables.items()
    }
