"""Take nested dicts, lists, tuples and dataclasses apart into leaves, and rebuild them.

Once the program imported jax, so are containers of the classes that are registered with it, by its
registry. A leaf's path consists of the keys, indices and field names that lead to it, with "/"
between them.
"""

import copy
import dataclasses
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Leaf: TypeAlias = tuple[str, Any]  # a leaf with its path


# The most common first, because `isinstance` of an abstract class is slow.
_NODES = (dict, list, tuple, Mapping)


# Modules whose classes are taken apart here, or not at all, whatever jax knows of them.
_NEVER_REGISTERED = frozenset({"builtins", "collections", "numpy", "ml_dtypes"})


def is_node(tree: object) -> bool:
    """Tell whether a value is a mapping, list, tuple, dataclass or of a class known to jax."""
    # The class is asked, so that a dataclass itself, not an instance, is a leaf.
    return isinstance(tree, _NODES) or dataclasses.is_dataclass(type(tree)) or is_registered(tree)


def is_registered(value: object) -> bool:
    """Tell whether a value is a container of a class that is registered with jax."""
    # jax is asked only if the program imported it, and each time, because classes are registered at
    # any time.
    tree_util = _tree_util(value)
    return tree_util is not None and tree_util.default_registry.flatten_one_level(value) is not None


def _tree_util(value: object) -> Any:  # noqa: ANN401  (a module)
    """Return `jax.tree_util` if the program imported it, and its registry decides about a value."""
    if getattr(type(value), "__module__", "") in _NEVER_REGISTERED:
        return None
    return getattr(sys.modules.get("jax"), "tree_util", None)  # not while jax is being imported


def _registered_children(node: object) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the children of a registered container, by key, and the structure around them."""
    # All but the first that is asked about, the node: a child may be the node itself.
    is_leaf = iter((False,))
    pairs, structure = _tree_util(node).tree_flatten_with_path(
        node, is_leaf=lambda _: next(is_leaf, True)
    )
    return [(joined_keys(keys), child) for keys, child in pairs], structure


def joined_keys(keys: tuple[Any, ...]) -> str:
    """Return a path of jax's as castwise writes it: dicts' keys, indices and fields."""
    return "/".join(
        str(next((getattr(key, name) for name in _KEYS if hasattr(key, name)), key)) for key in keys
    )


_KEYS = ("key", "idx", "name")  # where classes of jax hold one part of a path


def leaves(tree: object) -> Iterator[Leaf]:
    """Yield every leaf that is not None, in order, with its path."""
    with _bound_depth(tree):
        yield from _leaves(tree, "")


def _leaves(tree: object, path: str) -> Iterator[Leaf]:
    if is_node(tree):
        for key, child in _children(tree):
            yield from _leaves(child, _join(path, key))
    elif tree is not None:
        yield path, tree


def values(tree: object) -> list[Any]:
    """Return every leaf that is not None, in the same order; faster than `leaves`."""
    with _bound_depth(tree):
        return _values(tree)


def _values(tree: object) -> list[Any]:
    if isinstance(tree, list | tuple) and set(map(type, tree)) == {np.ndarray}:
        return list(tree)
    if not is_node(tree):
        return [] if tree is None else [tree]
    return [value for _, child in _children(tree) for value in _values(child)]


def map_leaves(
    tree: object,
    function: Callable[[Any, str], object],
    *,
    is_node: Callable[[Any], bool] = is_node,
    shared: bool = False,
    by_dtype: Callable[[np.dtype[Any]], Callable[[Any], object]] | None = None,
) -> Any:  # noqa: ANN401  (as the tree)
    """Return a structure of the same classes, with `function(leaf, path)` for each leaf."""
    # Mappings that cannot be copied with other values become plain dicts. With `shared`, a node
    # whose leaves all stay the same objects is not copied. `by_dtype` gives a function for plain
    # arrays, each of which is mapped once; `function` gets the arrays that `by_dtype` refuses.
    ndarray, mapped_by_id = np.ndarray, dict[int, Any]()
    alive = []  # so that no identity is used again
    last: Any = None  # the dtype that `convert` is for
    convert: Any = None

    def mapped(node: Any, way: Any) -> object:  # noqa: ANN401  (as the tree; pairs of pairs)
        nonlocal last, convert
        cls, keys = type(node), None
        items: Iterable[tuple[Any, Any]]
        values: Any
        if cls is dict:
            items, values = node.items(), {}
        elif cls is list or cls is tuple:
            items, values = enumerate(node), [None] * len(node)
        elif cls is ndarray or not is_node(node):
            return function(node, _path(way))
        else:
            pairs = _children(node)
            keys, children = [key for key, _ in pairs], [child for _, child in pairs]
            items, values = enumerate(children), [None] * len(children)
        alive.append(node if keys is None else children)
        # Trees have thousands of small arrays: for these the loop calls nothing else.
        for key, child in items:
            if by_dtype is not None and type(child) is ndarray:
                result = mapped_by_id.get(id(child))
                if result is None:
                    try:
                        if child.dtype is not last:
                            convert = by_dtype(child.dtype)
                            last = child.dtype
                        result = mapped_by_id[id(child)] = convert(child)
                    except (TypeError, ValueError, OverflowError):
                        result = function(child, _path((way, key if keys is None else keys[key])))
            else:
                result = mapped(child, (way, key if keys is None else keys[key]))
            values[key] = result
        if shared and _is_same(children if keys else node, values):
            return node
        if keys is not None:
            return _rebuild(node, list(zip(keys, values, strict=True)))
        return tuple(values) if cls is tuple else values

    with _bound_depth(tree, is_node):
        return mapped(tree, None)


def _is_same(children: Any, values: Any) -> bool:  # noqa: ANN401  (dicts or lists)
    """Tell whether the children of a node all stayed the same objects."""
    if isinstance(values, dict):
        return all(map(operator.is_, children.values(), values.values()))
    return all(map(operator.is_, children, values))


def _path(way: Any) -> str:  # noqa: ANN401  (pairs of pairs)
    """Return the path of nested pairs, of a way and the key that follows it; None is no way."""
    keys: list[str] = []
    while way is not None:
        way, key = way
        keys.append(str(key))
    return "/".join(reversed(keys))


def replace(tree: object, values: Iterator[Any]) -> Any:  # noqa: ANN401  (as the tree)
    """Replace each leaf that is not None, in the same order."""
    return map_leaves(tree, lambda leaf, path: None if leaf is None else next(values))


def zip_leaves(
    left: object, right: object, names: tuple[str, str]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the leaves of two trees of equal structure in pairs; None pairs with None only."""
    with _bound_depth(left):
        yield from _zip(left, right, names, "")


def _zip(
    left: object, right: object, names: tuple[str, str], path: str
) -> Iterator[tuple[str, Any, Any]]:
    if not is_node(left) or not is_node(right):
        if is_node(left) != is_node(right) or (left is None) != (right is None):
            raise ValueError(_differ(left, right, names, path))
        if left is not None:
            yield path, left, right
        return
    right_children = dict(_children(right))
    keys = [key for key, _ in _children(left)]
    if set(keys) != set(right_children):
        raise ValueError(_differ(set(keys), set(right_children), names, path))
    for key, child in _children(left):
        yield from _zip(child, right_children[key], names, _join(path, key))


@contextmanager
def _bound_depth(tree: object, is_node: Callable[[Any], bool] = is_node) -> Iterator[None]:
    """Replace the RecursionError of a tree that contains itself by an error with the path."""
    try:
        yield
    except RecursionError:
        path = _way_into_itself(tree, is_node)
        if path is None:
            raise
        raise ValueError(
            f"the tree contains itself, at {path!r}; give one whose leaves are arrays."
        ) from None


def _way_into_itself(tree: object, is_node: Callable[[Any], bool]) -> str | None:
    """Return the path of the first node that contains itself."""
    way = [(tree, iter(_children(tree)), "")]
    while way:
        _, children, path = way[-1]
        for key, child in children:
            if is_node(child):
                if any(child is node for node, _, _ in way):
                    return _join(path, key)
                way.append((child, iter(_children(child)), _join(path, key)))
                break
        else:
            way.pop()
    return None


def _differ(left: object, right: object, names: tuple[str, str], path: str) -> str:
    where = f" at {path!r}" if path else ""
    texts = [_name_of(value) for value in (left, right)]
    return (
        f"{names[0]} and {names[1]} differ in structure{where}: {texts[0]} and {texts[1]}; "
        "give trees of the same structure."
    )


def _name_of(value: object) -> str:
    return (
        str(value) if isinstance(value, set) else "None" if value is None else type(value).__name__
    )


def _join(path: str, key: object) -> str:
    return f"{path}/{key}" if path else str(key)


def _children(node: object) -> list[tuple[Any, Any]]:
    """Return the children of a node, by key, index or field name."""
    if is_registered(node):
        return _registered_children(node)[0]
    if isinstance(node, Mapping):
        return list(node.items())
    if isinstance(node, list | tuple):
        return list(zip(getattr(node, "_fields", None) or range(len(node)), node, strict=True))
    fields = dataclasses.fields(cast("DataclassInstance", node))
    return [(field.name, getattr(node, field.name)) for field in fields]


def _rebuild(node: object, parts: list[tuple[Any, Any]]) -> object:
    """Return a node of the same class with other children."""
    if is_registered(node):
        structure = _registered_children(node)[1]
        return structure.unflatten(value for _, value in parts)
    if isinstance(node, Mapping):
        # Of other classes a copy may share its items, or a file, with the original.
        is_copied = isinstance(node, dict) or hasattr(type(node), "__copy__")
        if not is_copied or not isinstance(node, MutableMapping):
            return dict(parts)
        mapping = copy.copy(node)
        for key, value in parts:  # every such class has this method; some refuse `update`
            mapping[key] = value
        return mapping
    children = [value for _, value in parts]
    if isinstance(node, list | tuple):
        return type(node)(*children) if hasattr(node, "_fields") else type(node)(children)
    instance = copy.copy(node)
    for name, value in parts:
        # Not by __init__, which may refuse: only the leaves of the copy are others.
        object.__setattr__(instance, name, value)
    return instance
