"""Cast every array of a nested structure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from castwise._adapter_registry import Adapter, find
from castwise._core import cast
from castwise._dtype_map import DtypeMap
from castwise._floating import is_floating
from castwise._options import Role, TreeOptions
from castwise._seeding import tensor_seed
from castwise._trees import map_leaves

Tree = TypeVar("Tree")
Key = TypeVar("Key")

_OWN_RESULT = ("out", "report", "copy")
"""Options of `cast` that are about one array, and are refused for a tree."""


@overload
def cast_tree(
    tree: NDArray[Any] | np.generic,
    dtype_or_policy_or_map: Any,
    *,
    only_floating: bool = True,
    role: Role = "variable",
    **options: Unpack[TreeOptions],
) -> NDArray[Any]: ...
@overload
def cast_tree(
    tree: dict[Key, NDArray[Any]],
    dtype_or_policy_or_map: Any,
    *,
    only_floating: bool = True,
    role: Role = "variable",
    **options: Unpack[TreeOptions],
) -> dict[Key, NDArray[Any]]: ...
@overload
def cast_tree(
    tree: list[NDArray[Any]],
    dtype_or_policy_or_map: Any,
    *,
    only_floating: bool = True,
    role: Role = "variable",
    **options: Unpack[TreeOptions],
) -> list[NDArray[Any]]: ...
@overload
def cast_tree(
    tree: tuple[NDArray[Any], ...],
    dtype_or_policy_or_map: Any,
    *,
    only_floating: bool = True,
    role: Role = "variable",
    **options: Unpack[TreeOptions],
) -> tuple[NDArray[Any], ...]: ...
@overload
def cast_tree(
    tree: Tree,
    dtype_or_policy_or_map: Any,
    *,
    only_floating: bool = True,
    role: Role = "variable",
    **options: Unpack[TreeOptions],
) -> Tree: ...
def cast_tree(
    tree: Any,
    dtype_or_policy_or_map: Any,
    *,
    only_floating: bool = True,
    role: Role = "variable",
    **options: Unpack[TreeOptions],
) -> Any:
    r"""Cast the arrays of nested dicts, lists, tuples and dataclasses.

    Parameters
    ----------
    tree : nested mapping, list, tuple, namedtuple or dataclass instance
        Leaves that are numpy arrays or numpy scalars are cast, and arrays of a library that has an
        adapter (`castwise.adapters`), to arrays of that library; all others (None, Python numbers,
        strings, ...) are not changed, and neither is the tree itself. Mappings that cannot be
        copied with other values become plain dicts.
    dtype_or_policy_or_map : dtype, policy, or mapping of str to dtype
        One target for all arrays, or a mapping of paths or regular expressions to targets. The path
        of a leaf consists of the keys, indices and field names that lead to it, joined by ``/``. A
        key equal to the path is used first, else one that matches the whole path. ``"default"`` is
        for floating arrays that no key matches; the target ``"keep"`` changes nothing. A
        `DTypePolicy` (or the name of one), or a `DTypePolicyMap`, gives each floating array the
        dtype of its policy.
    only_floating : bool
        Leave integer, bool and complex arrays alone, unless a key of the mapping matches their
        path.
    role : {"variable", "compute"}
        Which dtype of a policy is used: that of variables, or that of computations.
    **options
        ``rounding``, ``overflow``, ``nan``, ``scale``, ``seed``, ``order``, ``threads``, as in
        ``cast``. With a ``seed``, each array has a seed of its own, derived from ``seed`` and its
        path.

    Returns
    -------
    A structure of the same classes. An array that occurs several times is cast once, and occurs
    at the same places of the result.

    Raises
    ------
    TypeError
        An unknown dtype or policy, an option that is about one array, an array that no format
        describes.
    ValueError
        An invalid regular expression; a path that two keys match (the message has both).
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
    check_tree_options(options, "cast_tree")
    targets = DtypeMap.of(dtype_or_policy_or_map, role)
    return map_leaves(tree, Walk(targets, only_floating, options).leaf)


def check_tree_options(options: Mapping[str, Any], function: str) -> None:
    """Refuse wrong options of `cast`, and those about one array, even if the tree has no arrays."""
    for name in _OWN_RESULT:
        if name in options:
            raise TypeError(f"{name}= is about one array; {function} does not take it.")
    # An array without elements, with which every scale broadcasts.
    shape: tuple[int, ...] = np.shape(options.get("scale", 1.0))
    nothing = np.empty((0, *shape), np.float32)
    cast(nothing, nothing.dtype, **options)


def cast_at(
    array: Any,
    target: Any,
    path: str,
    options: Mapping[str, Any],
    cast: Callable[..., Any] = cast,
) -> Any:
    """Cast an array of a tree, with a seed of its own, and its path in errors."""
    if options.get("seed") is not None:
        options = {**options, "seed": tensor_seed(options["seed"], path)}
    try:
        return cast(array, target, **options)
    except (TypeError, ValueError, OverflowError) as error:
        if type(error) in (TypeError, ValueError, OverflowError):
            raise type(error)(f"{path!r}: {error}") from error
        error.add_note(f"in the array at {path!r}")  # other classes may need more than a text
        raise


@dataclasses.dataclass
class Walk:
    """One walk over a tree."""

    targets: DtypeMap
    only_floating: bool
    options: Mapping[str, Any]
    done: dict[tuple[int, str], tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    """Each array that was cast, with its result, by identity and target. The reference to the array
    keeps its identity from being used again."""

    def leaf(self, array: Any, path: str) -> Any:
        """Return the leaf, cast if it is an array and has a target."""
        if isinstance(array, np.ndarray | np.generic):
            floating = not self.only_floating or is_floating(array.dtype)
        else:
            adapter = find(type(array))
            if adapter is None:
                return array
            if not adapter.is_array(array):
                return self.container(array, path, adapter)
            floating = not self.only_floating or adapter.is_floating(array)
        target = self.targets.decide(path, floating).target
        if target is None:
            return array
        key = (id(array), target)
        if key not in self.done:
            self.done[key] = (array, cast_at(array, target, path, self.options))
        return self.done[key][1]

    def container(self, node: Any, path: str, adapter: Adapter) -> Any:
        """Return another library's container with its arrays cast, and any other value as it is."""
        children = adapter.children(node)
        if children is None:
            return node
        walked = [(key, self.below(child, f"{path}/{key}")) for key, child in children]
        return adapter.rebuild(node, walked)

    def below(self, tree: Any, path: str) -> Any:
        """Cast a tree below a path."""
        path = path.removeprefix("/")
        return map_leaves(
            tree, lambda leaf, rest: self.leaf(leaf, f"{path}/{rest}" if rest else path)
        )
