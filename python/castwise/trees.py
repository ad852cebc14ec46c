"""Nested dicts, lists, tuples and dataclasses, taken apart into leaves and put together again."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any


def is_node(tree: Any) -> bool:
    """Whether structure: a mapping, list, tuple, namedtuple or dataclass instance."""
    return isinstance(tree, Mapping | list | tuple) or (
        dataclasses.is_dataclass(tree) and not isinstance(tree, type)
    )


def map_leaves(
    tree: Any,
    function: Callable[[Any, str], Any],
    *,
    is_node: Callable[[Any], bool] = is_node,
    path: str = "",
) -> Any:
    """A structure of the same classes, with `function(leaf, path)` in the place of each leaf.

    A leaf's path is made of the keys, indices and field names on the way to it, joined by "/". The
    tree is not changed; mappings that cannot be copied with other values become plain dicts.
    """
    if not is_node(tree):
        return function(tree, path)
    return _rebuild(
        tree,
        [
            (key, map_leaves(child, function, is_node=is_node, path=join(path, key)))
            for key, child in children(tree)
        ],
    )


def join(path: str, key: Any) -> str:
    """The path of a child."""
    return f"{path}/{key}" if path else str(key)


def children(node: Any) -> list[tuple[Any, Any]]:
    """What a node is made of, by key, index or field name."""
    if isinstance(node, Mapping):
        return list(node.items())
    if isinstance(node, list | tuple):
        return list(zip(getattr(node, "_fields", None) or range(len(node)), node, strict=True))
    return [(field.name, getattr(node, field.name)) for field in dataclasses.fields(node)]


def _rebuild(node: Any, parts: list[tuple[Any, Any]]) -> Any:
    """A node of the same class, made of other children."""
    if isinstance(node, Mapping):
        if not isinstance(node, MutableMapping):
            return dict(parts)
        mapping = copy.copy(node)
        mapping.update(parts)
        return mapping
    values = [value for _, value in parts]
    if isinstance(node, list | tuple):
        return type(node)(*values) if hasattr(node, "_fields") else type(node)(values)
    instance = copy.copy(node)
    for name, value in parts:
        # Past __init__ and frozen: the copy differs from the original in its leaves only.
        object.__setattr__(instance, name, value)
    return instance
