"""Cast every array of a nested structure."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, MutableMapping
from typing import Any, TypeVar

import numpy as np

from castwise._core import cast, finfo
from castwise.dtype_map import DtypeMap
from castwise.seeding import tensor_seed

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
    tree : nested mapping, list, tuple, namedtuple or dataclass instance
        Leaves that are numpy arrays or numpy scalars are cast; all others (None, Python numbers,
        strings, ...) stay what they are. The tree itself is not changed. Mappings that cannot be
        copied with other values become plain dicts.
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
        ``cast``. With a ``seed``, each array draws from its own, made of ``seed`` and its path.

    Returns
    -------
    A structure of the same classes. An array that stands in several places is cast once, and
    stands in the same places of the result.

    Raises
    ------
    TypeError
        Unknown dtype, an option that is about one array, an array that no format describes.
    ValueError
        An invalid regular expression; a path that two keys match, naming both.
    OverflowError, ValueError
        What ``cast`` raises for a leaf, with its path.

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
    # A wrong option is refused in any tree: no elements, in a shape that every scale fits.
    shape: tuple[int, ...] = np.shape(options.get("scale", 1.0))
    nothing = np.empty((0, *shape), np.float32)
    cast(nothing, nothing.dtype, **options)
    walk = _Walk(targets, only_floating, options)
    result: Tree = walk.node(tree, "")
    return result


@dataclasses.dataclass
class _Walk:
    """One walk over a tree."""

    targets: DtypeMap
    only_floating: bool
    options: dict[str, Any]
    done: dict[tuple[int, str], tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    """Arrays that were cast, by identity and target, with their results; held, so that no other
    array can take over an identity."""

    def node(self, node: Any, path: str) -> Any:
        """The node with its arrays cast."""
        if isinstance(node, np.ndarray | np.generic):
            return self.leaf(node, path)
        if isinstance(node, Mapping):
            items = {key: self.node(value, _join(path, key)) for key, value in node.items()}
            if not isinstance(node, MutableMapping):
                return items
            mapping = copy.copy(node)
            mapping.update(items)
            return mapping
        if isinstance(node, list | tuple):
            fields = getattr(node, "_fields", None)  # a namedtuple's
            keys = fields or range(len(node))
            values = [
                self.node(value, _join(path, key)) for key, value in zip(keys, node, strict=True)
            ]
            return type(node)(*values) if fields else type(node)(values)
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
            self.done[key] = (array, self.cast(array, target, path))
        return self.done[key][1]

    def cast(self, array: Any, target: str, path: str) -> Any:
        """The array, cast; errors name its path."""
        options = dict(self.options)
        if options.get("seed") is not None:
            options["seed"] = tensor_seed(options["seed"], path)
        try:
            return cast(array, target, **options)
        except (TypeError, ValueError, OverflowError) as error:
            if type(error) in (TypeError, ValueError, OverflowError):
                raise type(error)(f"{path!r}: {error}") from error
            error.add_note(f"in the array at {path!r}")  # others may not be made from a text alone
            raise


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)


def _is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether a real float; those that no format describes are left to `cast` to refuse."""
    try:
        return finfo(dtype).kind == "float"
    except TypeError:
        return dtype.kind == "f"
