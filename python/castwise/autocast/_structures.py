"""Nested arguments of layers: dicts, lists and tuples. All else is a leaf, also dataclasses."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from castwise import _trees as trees

# Common types of leaves, for speed.
_LEAVES = frozenset((np.ndarray, type(None), bool, int, float, str))


def is_structure(value: object) -> TypeGuard[Mapping[Any, Any] | Sequence[Any]]:
    """Tell whether a value is a mapping, list, tuple or namedtuple."""
    return type(value) not in _LEAVES and isinstance(value, Mapping | list | tuple)


def map_leaves(function: Callable[[Any], Any], structure: object) -> Any:
    """Return a structure of the same classes, with `function(leaf)` for each leaf, also None."""
    if not is_structure(structure):
        return function(structure)
    return trees.map_leaves(structure, lambda leaf, path: function(leaf), is_node=is_structure)


def leaves(structure: object) -> Iterator[Any]:
    """Yield every leaf in order, also None."""
    if not is_structure(structure):
        yield structure
        return
    children = structure.values() if isinstance(structure, Mapping) else structure
    for child in children:
        yield from leaves(child)


def is_array(value: object) -> TypeGuard[NDArray[Any] | np.generic]:
    return isinstance(value, np.ndarray | np.generic)


def shape_of(leaf: object) -> tuple[int, ...] | None:
    return leaf.shape if is_array(leaf) else None
