"""Nested arguments of layers: dicts, lists and tuples; all else is a leaf, dataclasses too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from castwise import _trees as trees

_LEAVES = frozenset((np.ndarray, type(None), bool, int, float, str))
"""Types that are surely none, for speed."""


def is_structure(value: Any) -> bool:
    """Whether a mapping, list, tuple or namedtuple."""
    return type(value) not in _LEAVES and isinstance(value, Mapping | list | tuple)


def each(function: Callable[[Any], Any], structure: Any) -> Any:
    """A structure of the same classes, with `function(leaf)` for each leaf, None too."""
    if not is_structure(structure):
        return function(structure)
    return trees.map_leaves(structure, lambda leaf, path: function(leaf), is_node=is_structure)


def leaves(structure: Any) -> Iterator[Any]:
    """Every leaf, in order, None too."""
    if not is_structure(structure):
        yield structure
        return
    children = structure.values() if isinstance(structure, Mapping) else structure
    for child in children:
        yield from leaves(child)


def is_array(value: Any) -> bool:
    """Whether an array or a scalar of numpy."""
    return isinstance(value, np.ndarray | np.generic)


def shape_of(leaf: Any) -> tuple[int, ...] | None:
    """The shape of an array; None of what is none."""
    return leaf.shape if is_array(leaf) else None
