"""Cast every array of a nested structure."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast, caster, read_array
from castwise._numbers import is_floating
from castwise._options import Role, TreeOptions
from castwise._trees import map_leaves
from castwise.arrays.adapter_registry import array_format, children_of, find, rebuilt
from castwise.arrays.dtype_map import DtypeMap
from castwise.arrays.host_arrays import array_dtype, is_rebuilt
from castwise.rendering.text import unused_lines
from castwise.text.spelling import unused_patterns
from castwise.text.wording import check_switch

Tree = TypeVar("Tree")
Key = TypeVar("Key")

# Options of `cast` that are about one array, and are refused for a tree.
_OWN_RESULT = ("out", "report", "copy")


@overload
def cast_tree(
    tree: NDArray[Any] | np.generic,
    dtype_or_policy_or_map: object,
    *,
    only_floating: bool = True,
    role: Role = "variable",
    **options: Unpack[TreeOptions],
) -> NDArray[Any]: ...
@overload
def cast_tree(
    tree: dict[Key, NDArray[Any]],
    dtype_or_policy_or_map: object,
    *,
    only_floating: bool = True,
    role: Role = "variable",
    **options: Unpack[TreeOptions],
) -> dict[Key, NDArray[Any]]: ...
@overload
def cast_tree(
    tree: list[NDArray[Any]],
    dtype_or_policy_or_map: object,
    *,
    only_floating: bool = True,
    role: Role = "variable",
    **options: Unpack[TreeOptions],
) -> list[NDArray[Any]]: ...
@overload
def cast_tree(
    tree: tuple[NDArray[Any], ...],
    dtype_or_policy_or_map: object,
    *,
    only_floating: bool = True,
    role: Role = "variable",
    **options: Unpack[TreeOptions],
) -> tuple[NDArray[Any], ...]: ...
@overload
def cast_tree(
    tree: Tree,
    dtype_or_policy_or_map: object,
    *,
    only_floating: bool = True,
    role: Role = "variable",
    **options: Unpack[TreeOptions],
) -> Tree: ...
def cast_tree(
    tree: object,
    dtype_or_policy_or_map: object,
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
        adapter (`castwise.adapters`), to arrays of that library. Other arrays that `cast` takes
        (of pandas, xarray, zarr, h5py, ...) become numpy arrays. All other leaves (None, Python
        numbers, strings, jax's random keys, ...) do not change, nor does the tree itself. After
        jax is imported, jax takes apart and rebuilds the containers that are registered with it;
        static fields do not change. Other mappings that cannot be copied with other values become
        plain dicts.
    dtype_or_policy_or_map : dtype, policy, or mapping of str to dtype
        One target for all arrays, or a mapping of paths or regular expressions to targets. The path
        of a leaf consists of the keys, indices and field names that lead to it, joined by ``/``. A
        key equal to the path is used first, else one that matches the whole path. ``"default"`` is
        for floating arrays that no key matches; the target ``"keep"`` changes nothing. A
        `DTypePolicy` (or the name of one), or a `DTypePolicyMap`, gives each floating array the
        dtype of its policy.
    only_floating : bool
        Leave integer, bool and complex arrays alone, unless a key of the mapping matches their
        path; a key with a format of floats must be their whole path.
    role : {"variable", "compute"}
        Which dtype of a policy is used: that of variables, or that of computations.
    **options
        ``rounding``, ``overflow``, ``nan``, ``scale``, ``seed``, ``order``, ``threads``, ``like``,
        as in ``cast``. With a ``seed``, each array has a seed of its own, derived from ``seed``
        and its path.

    Returns
    -------
    A structure of the same classes. An array that occurs several times is cast once, and occurs
    at the same places of the result.

    Warns
    -----
    UserWarning
        A key of a mapping matches the path of no array; the warning has the most similar path.
        (For a map of policies, `DTypePolicyMap.explain` reports such keys.)

    Raises
    ------
    TypeError
        An unknown dtype or policy; an option for a single array; an array with a mask or nulls, or
        of a dtype without a format; a container that castwise cannot rebuild (an xarray.Dataset, a
        file of h5py).
    ValueError
        An invalid regular expression; a path that two keys match (the message has both).
    OverflowError, ValueError
        What ``cast`` raises for a leaf, with its path.

    Examples
    --------
    >>> tree = {"dense": {"kernel": np.ones(2), "step": np.int64(7)}}
    >>> cast_tree(tree, "bfloat16")
    {'dense': {'kernel': array([1, 1], dtype=dtype(bfloat16)), 'step': np.int64(7)}}
    >>> cast_tree(tree, {r"dense/.*l": "float16"})["dense"]["kernel"].dtype
    dtype('float16')

    """
    check_tree_options(options, "cast_tree")
    if isinstance(tree, str | bytes | os.PathLike):
        raise TypeError(f"tree={tree!r} is a path; castwise.checkpoint.cast_file casts files.")
    walk = Walk(DtypeMap.of(dtype_or_policy_or_map, role), only_floating, options)
    result = walk.cast_below(tree, "")
    walk.warn_of_unused()
    return result


def check_tree_options(options: Mapping[str, Any], function: str) -> None:
    """Refuse wrong options of `cast`, and those about one array, even if the tree has no arrays."""
    for name in _OWN_RESULT:
        if name in options:
            raise TypeError(f"{name}= is about one array; {function} does not take it.")
    # An array without elements, with which every scale broadcasts.
    scale = options.get("scale")
    shape = () if scale is None else read_array("scale", scale).shape
    nothing = np.empty((0, *shape), np.float32)
    cast(nothing, nothing.dtype, **options)


def cast_at(
    array: object,
    target: object,
    path: str,
    options: Mapping[str, Any],
    cast: Callable[..., Any] = cast,
) -> Any:  # noqa: ANN401  (of any library)
    """Cast an array of a tree, with a seed of its own, and its path in errors."""
    if options.get("seed") is not None:
        options = {**options, "seed": tensor_seed(options["seed"], path)}
    try:
        return cast(array, target, **options)
    except (TypeError, ValueError, OverflowError) as error:
        raise_at(path, error)


def _keep(array: object) -> object:
    return array


def raise_at(path: str, error: Exception) -> NoReturn:
    """Raise an error about an array of a tree again, with its path."""
    if type(error) in (TypeError, ValueError, OverflowError):
        raise type(error)(f"{path!r}: {error}" if path else str(error)) from error
    error.add_note(f"in the array at {path!r}")  # other classes may need more than a text
    raise error


def is_keras_layer(cls: type) -> bool:
    """Return True for a layer or model of Keras or tf_keras, whose variables no tree shows."""
    return any(
        base.__name__ == "Layer" and base.__module__.partition(".")[0] in ("keras", "tf_keras")
        for base in cls.__mro__
    )


@dataclasses.dataclass
class Walk:
    """One walk over a tree."""

    targets: DtypeMap
    only_floating: bool
    options: Mapping[str, Any]
    # Each array that was cast, with its result, by identity and target. The reference to the array
    # keeps its identity from being used again.
    casts: dict[tuple[int, str], tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    paths: list[str] = dataclasses.field(default_factory=list)
    """Those of the arrays."""
    casters: dict[np.dtype[Any], Callable[[Any], Any]] = dataclasses.field(default_factory=dict)
    # The keys of the map that matched one.
    keys_used: set[str] = dataclasses.field(default_factory=set)

    def __post_init__(self) -> None:
        """Refuse what is not a bool."""
        check_switch("only_floating", self.only_floating)

    def leaf(self, leaf: object, path: str) -> object:
        """Return the leaf, cast if it is an array and has a target."""
        adapter = None if isinstance(leaf, np.ndarray | np.generic) else find(type(leaf))
        is_array, floating, has_format, children = False, False, True, None
        try:
            if adapter is not None and adapter.is_array(leaf):
                is_array, floating = True, adapter.is_floating(leaf)
                has_format = self.only_floating or array_format(adapter, leaf) is not None
            elif adapter is None or (children := children_of(adapter, leaf)) is None:
                dtype = array_dtype(leaf)
                is_array, floating = dtype is not None, dtype is not None and is_floating(dtype)
                if not is_array and is_keras_layer(type(leaf)):
                    self.check_layer(leaf, path)
        except (TypeError, ValueError, OverflowError) as error:
            raise_at(path, error)
        if adapter is not None and children is not None:
            pairs = [(key, self.cast_below(child, f"{path}/{key}")) for key, child in children]
            return rebuilt(adapter, leaf, pairs)
        # What no format describes, as jax's random keys, is cast only if a key of the map says so.
        every = has_format and not self.only_floating
        return self.array(leaf, path, floating or every) if is_array else leaf

    def check_layer(self, layer: Any, path: str) -> None:  # noqa: ANN401  (of Keras)
        """Refuse a layer that has a target, as `cast` does, with the remedy."""
        target, key, _ = self.targets.decide(path, True)
        if key is not None:
            self.keys_used.add(key)
        if target is not None:
            cast(layer, np.float32)

    def array(self, array: object, path: str, by_default: bool) -> object:
        """Return the array, cast if it has a target: that of a key, or the default."""
        target, key, _ = self.targets.decide(path, by_default)
        self.paths.append(path)
        if key is not None:
            self.keys_used.add(key)
        if target is None:
            return array
        place = (id(array), target)
        if place not in self.casts:
            self.casts[place] = (array, cast_at(array, target, path, self.options))
        return self.casts[place][1]

    def cast_below(self, tree: object, path: str) -> object:
        path = path.removeprefix("/")
        needs_paths = self.targets.keys.items() or self.options.get("seed") is not None
        return map_leaves(
            tree,
            (lambda leaf, rest: self.leaf(leaf, f"{path}/{rest}" if rest else path))
            if path
            else self.leaf,
            is_node=is_rebuilt,
            by_dtype=None if needs_paths else self.caster_of,
        )

    def caster_of(self, dtype: np.dtype[Any]) -> Callable[[Any], Any]:
        """Return what casts arrays of a dtype by default, or returns them."""
        if dtype not in self.casters:
            by_default = is_floating(dtype) or not self.only_floating
            target = self.targets.decide("", by_default).target
            options = {name: value for name, value in self.options.items() if name != "seed"}
            cast = _keep if target is None else caster(dtype, target, **options)
            self.casters[dtype] = cast
        return self.casters[dtype]

    def warn_of_unused(self, stacklevel: int = 3) -> None:
        """Warn of keys that matched no array, with the paths that they may have meant."""
        # A map of policies says so itself, by `DTypePolicyMap.explain`: it is for all of a model,
        # of which a tree may be a part.
        if not self.targets.all_kinds:
            return
        hits = {key: int(key in self.keys_used) for key, _ in self.targets.keys.items()}
        if lines := unused_lines(unused_patterns(hits, self.paths)):
            warnings.warn("\n".join(lines), UserWarning, stacklevel=stacklevel)


def tensor_seed(seed: int, name: str) -> int:
    """Return the seed of one array, from the common seed and the array's name or path.

    A random number depends on the seed and the position of the element. With one seed for all
    arrays, elements at the same position would always be rounded by the same random number.

    Examples
    --------
    >>> castwise.checkpoint.tensor_seed(7, "fc.weight")
    15331570836398896801

    """
    import hashlib  # noqa: PLC0415  (OpenSSL takes milliseconds, for `seed=` alone)

    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8)
    digest.update(seed.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")
