"""Nested structures of arrays: walk them, and build them anew with other leaves."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any


def map_leaves(
    tree: Any,
    function: Callable[[Any, str], Any],
    *,
    into_dataclasses: bool = True,
    path: str = "",
) -> Any:
    """A structure of the same classes, with `function(leaf, path)` for every leaf.

    Mappings, lists, tuples, namedtuples and (if `into_dataclasses`) dataclass instances are
    structure, all else is a leaf. A leaf's path is made of the keys, indices and field names on the
    way to it, joined by "/". The tree is not changed; mappings that cannot be copied with other
    values become plain dicts.
    """

    def below(key: Any, value: Any) -> Any:
        deeper = f"{path}/{key}" if path else str(key)
        return map_leaves(value, function, into_dataclasses=into_dataclasses, path=deeper)

    if isinstance(tree, Mapping):
        items = {key: below(key, value) for key, value in tree.items()}
        if not isinstance(tree, MutableMapping):
            return items
        mapping = copy.copy(tree)
        mapping.update(items)
        return mapping
    if isinstance(tree, list | tuple):
        fields = getattr(tree, "_fields", None)  # a namedtuple's
        values = [
            below(key, value) for key, value in zip(fields or range(len(tree)), tree, strict=True)
        ]
        return type(tree)(*values) if fields else type(tree)(values)
    if into_dataclasses and dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        instance = copy.copy(tree)
        for field in dataclasses.fields(tree):
            # Past __init__ and frozen: the copy differs from the original in its leaves only.
            object.__setattr__(instance, field.name, below(field.name, getattr(tree, field.name)))
        return instance
    return function(tree, path)
