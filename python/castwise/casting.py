"""Cast every array of a nested structure."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from castwise._core import cast, finfo
from castwise.dtype_map import DtypeMap

Tree = TypeVar("Tree")

_OWN_RESULT = ("out", "report", "copy")
"""Options of `cast` that are about one array, and so have no meaning for a tree."""


def cast_tree(
    tree: Tree,
    dtype_or_map: Any,
    *,
    only_floating: bool = True,
    **options: Any,
) -> Tree:
    r"""Cast the arrays of nested dicts, lists, tuples and dataclasses.

    Parameters
    ----------
    tree : nested dict, list, tuple, namedtuple or dataclass instance
        Leaves that are numpy arrays or numpy scalars are cast; all others (None, Python numbers,
        strings, ...) stay what they are. The tree itself is not changed.
    dtype_or_map : dtype, or mapping of str to dtype
        One target for all arrays, or a mapping of regular expressions to targets. A key must match
        the whole path of a leaf: the keys, indices and field names on the way to it, joined by
        ``/``. ``"default"`` is for floating arrays that no key matches; ``"keep"`` is the target
        that changes nothing.
    only_floating : bool
        Leave integer, bool and complex arrays alone, unless a key of the mapping matches their
        path.
    **options
        ``rounding``, ``overflow``, ``nan``, ``scale``, ``seed``, ``order``, ``threads``, as in
        ``cast``.

    Returns
    -------
    A structure of the same classes. An array that stands in several places is cast once, and
    stands in the same places of the result.

    Raises
    ------
    TypeError
        Unknown dtype, or an option that is about one array.
    ValueError
        An invalid regular expression; a path that two keys match, naming both.

    Examples
    --------
    >>> tree = {"dense": {"kernel": np.ones(2), "step": np.int64(7)}}
    >>> cast_tree(tree, "bfloat16")
    {'dense': {'kernel': array([1, 1], dtype=bfloat16), 'step': np.int64(7)}}
    >>> cast_tree(tree, {r"dense/.*l": "float16"})["dense"]["kernel"].dtype
    dtype('float16')

    """
    for name in _OWN_RESULT:
        if name in options:
            raise TypeError(f"{name}= is about one array; cast_tree does not take it.")
    if isinstance(dtype_or_map, Mapping):
        targets = DtypeMap.from_mapping(dtype_or_map, "dtype_or_map")
    else:
        targets = DtypeMap.of_one(dtype_or_map)
    walk = _Walk(targets, only_floating, options)
    result: Tree = walk.node(tree, "")
    return result


@dataclasses.dataclass
class _Walk:
    """One walk over a tree."""

    targets: DtypeMap
    only_floating: bool
    options: dict[str, Any]
    done: dict[tuple[int, str], Any] = dataclasses.field(default_factory=dict)

    def node(self, node: Any, path: str) -> Any:
        """The node with its arrays cast."""
        if isinstance(node, np.ndarray | np.generic):
            return self.leaf(node, path)
        if isinstance(node, dict):
            mapping = copy.copy(node)
            mapping.update({key: self.node(value, _join(path, key)) for key, value in node.items()})
            return mapping
        if isinstance(node, list | tuple):
            fields = getattr(node, "_fields", None)  # a namedtuple's
            keys = fields or range(len(node))
            items = [
                self.node(value, _join(path, key)) for key, value in zip(keys, node, strict=True)
            ]
            return type(node)(*items) if fields else type(node)(items)
        if dataclasses.is_dataclass(node) and not isinstance(node, type):
            instance = copy.copy(node)
            for field in dataclasses.fields(node):
                # Past __init__ and frozen: the copy differs from the original in its arrays only.
                value = self.node(getattr(node, field.name), _join(path, field.name))
                object.__setattr__(instance, field.name, value)
            return instance
        return node

    def leaf(self, array: Any, path: str) -> Any:
        """The array, cast if anything asks for it."""
        match = self.targets.find(path)
        if match is None and self.only_floating and not _is_floating(array.dtype):
            return array
        target = self.targets.default if match is None else match[1]
        if target is None:
            return array
        key = (id(array), target)
        if key not in self.done:
            self.done[key] = cast(array, target, **self.options)
        return self.done[key]


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)


def _is_floating(dtype: np.dtype[Any]) -> bool:
    try:
        return finfo(dtype).kind == "float"
    except TypeError:
        return False
