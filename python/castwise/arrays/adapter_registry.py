"""Find the adapter that casts the arrays of a library, by the top-level module of their class.

This module imports no adapter: `castwise` names its own in `BUILT_IN`, and packages offer others as
entry points. `castwise.adapters.protocol` says how to write one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from castwise._core import cast, finfo
from castwise.environment.frameworks import entry_points_of, load_entry, package_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A child is a key and a value.
_PAIR = 2

GROUP = "castwise.adapters"
"""The group of entry points by which packages offer adapters."""

# The modules of castwise's own adapters, by the library of each; `castwise` puts them here.
BUILT_IN: dict[str, str] = {}

# Modules whose classes have no adapter, so that none is searched for.
_WITHOUT = frozenset({"builtins", "numpy", "ml_dtypes", "collections", "abc", "typing"})


class Adapter(ABC):
    """How one library's arrays are cast: the base class of adapters.

    A class that an entry point names is called without arguments.
    """

    @abstractmethod
    def is_array(self, value: object) -> bool:
        """Tell whether an instance of a class of the library is an array to cast."""

    @abstractmethod
    def dtype_of(self, array: Any) -> Any:
        """Return an array's dtype, as `castwise.finfo` takes it; None if no format describes it.

        One of the library's own dtypes is taken if `format_of` names its format. An array without a
        format is left alone by `cast_tree`, unless a key of a map names it.
        """

    def format_of(self, dtype: object) -> str | None:
        """Return the name of the format that one of the library's own dtypes means, or None.

        For every dtype argument of castwise, if the library has dtypes, objects or classes, that
        numpy does not understand.
        """
        del dtype
        return None

    @abstractmethod
    def to_host(self, array: Any) -> NDArray[Any]:
        """Return the elements as a numpy array, without a copy where that is possible."""

    @abstractmethod
    def from_host(self, array: NDArray[Any], like: Any) -> Any:
        """Return a numpy array, which the caller no longer uses, as an array where `like` is."""

    def cast(self, array: Any, dtype: object = None, **options: Any) -> Any:
        """Return the array in another dtype. By default it is cast on the host.

        Parameters
        ----------
        array : array
            One that `is_array` accepts.
        dtype, **options
            The arguments that `castwise.cast` was given. A class refuses those that it cannot obey.
            With ``copy=False`` an array that has the dtype is returned itself.

        Returns
        -------
        array of the library, or (array, CastReport) with ``report=True``

        Raises
        ------
        TypeError
            ``out`` is given: only numpy arrays are written in place.

        """
        if options.pop("out", None) is not None:
            kind = type(array).__name__
            raise TypeError(f"out= is not for a {kind}, which is cast to a new one; leave it out.")
        source = elements_of(self, array)
        result = cast(source, dtype, **options)
        if result is source:  # with copy=False
            return array
        if options.get("report"):
            return _move(self, result[0], array), result[1]
        return _move(self, result, array)

    def cast_into(
        self, array: NDArray[Any], dtype: object = None, *, out: Any, **options: Any
    ) -> Any:
        """Cast a numpy array into one of the library, which is returned. By default it is refused.

        Parameters
        ----------
        array : ndarray
            Of any dtype that castwise casts.
        dtype, **options
            As for `cast`.
        out : array
            One that `is_array` accepts.

        Raises
        ------
        TypeError
            The library's arrays are not written in place.

        """
        del array, dtype, options
        raise TypeError(f"out is of type {type(out).__name__}; give a numpy array.")

    def is_floating(self, array: Any) -> bool:
        """Tell whether an array holds real floats, which `cast_tree` casts by default."""
        name = array_format(self, array)
        return name is not None and finfo(name).kind == "float"

    def children(self, node: Any) -> Sequence[tuple[Any, Any]] | None:
        """Return the (key, value) pairs of a container of the library; None for any other value.

        Dicts, lists, tuples and dataclasses need no adapter. The path of an array consists of the
        keys that lead to it, joined by "/".
        """
        del node
        return None

    def rebuild(self, node: Any, children: Sequence[tuple[Any, Any]]) -> Any:
        """Return a container of the same class as `node`, with the values of `children`."""
        raise NotImplementedError(f"{type(self).__name__} has children, but no rebuild.")


_adapters: dict[str, Adapter] = {}
_adapters_by_predicate: list[tuple[Callable[[type], bool], Adapter]] = []
"""Asked in order, the newest first, for classes whose modules have no adapter."""
# Replaced when an adapter is registered: what a search still under way finds goes to the old.
_adapters_by_class: WeakKeyDictionary[type, Adapter | None] = WeakKeyDictionary()


def register(module: str | Callable[[type], bool], adapter: Adapter | type[Adapter]) -> None:
    """Use an adapter for classes of a top-level module, instead of any that an entry point offers.

    Parameters
    ----------
    module : str, or callable
        As "cupy", without dots. A function that takes a class and tells whether the adapter is for
        it is asked about classes whose modules, and those of their bases, have no adapter; once for
        each class. That registered last is asked first.
    adapter : Adapter, or class derived from it
        A class is called without arguments.

    Raises
    ------
    TypeError
        `adapter` is not an Adapter, or `module` neither a str nor a function.
    ValueError
        `module` has a dot, or is numpy or another module that has no adapter.

    """
    global _adapters_by_class  # noqa: PLW0603
    if isinstance(module, str):
        if not module.isidentifier() or module in _WITHOUT:
            raise ValueError(f"module={module!r} is not valid; give a top-level module, as 'cupy'.")
        _adapters[module] = checked_adapter(adapter, f"adapter={adapter!r}")
    elif callable(module) and not isinstance(module, type):
        _adapters_by_predicate.insert(0, (module, checked_adapter(adapter, f"adapter={adapter!r}")))
    else:
        raise TypeError(
            f"module={module!r} must be a str, as 'cupy', or a function that tells whether the "
            "adapter is for a class."
        )
    _adapters_by_class = WeakKeyDictionary()


def find(cls: type) -> Adapter | None:
    """Return the adapter of a class: that of its first base whose top-level module has one.

    Raises
    ------
    ImportError, TypeError
        The adapter cannot be imported, or is not an Adapter; the message names its package.

    """
    by_class = _adapters_by_class
    try:
        return by_class[cls]
    except KeyError:
        adapter = by_class[cls] = _search(cls)
        return adapter
    except TypeError:  # the metaclass does not hash
        return _search(cls)


def array_adapter(x: object) -> Adapter | None:
    """Return the adapter of another library's array, None for other values; for `cast`."""
    adapter = find(type(x))
    return adapter if adapter is not None and adapter.is_array(x) else None


def format_name(dtype: object) -> str | None:
    """Return the format that another library's dtype, an object or a class, means; None if none."""
    adapter = find(dtype if isinstance(dtype, type) else type(dtype))
    return None if adapter is None else adapter.format_of(dtype)


def array_format(adapter: Adapter, array: object) -> str | None:
    """Return the name of the format of an adapter's array; None if no format describes it."""
    dtype = adapter.dtype_of(array)
    if dtype is None:
        return None
    try:
        name: str = finfo(dtype).name
    except TypeError as error:
        if isinstance(dtype, np.dtype):  # as of dates, and of objects
            return None
        raise TypeError(
            f"{method_of(adapter, 'dtype_of')} returned {dtype!r}, which castwise.finfo does not "
            "take; return the name of a format or a dtype of numpy, or None if no format describes "
            "the array; or let format_of give the name for that dtype."
        ) from error
    return name


def elements_of(adapter: Adapter, array: object) -> NDArray[Any]:
    """Return the elements of an adapter's array. TypeError if `to_host` returns something else."""
    elements: Any = adapter.to_host(array)
    if isinstance(elements, np.generic):  # as many a library reads an array of no axes
        return np.asarray(elements)
    if not isinstance(elements, np.ndarray) or isinstance(elements, np.ma.MaskedArray):
        kind = type(elements).__name__
        raise TypeError(
            f"{method_of(adapter, 'to_host')} returned a {kind}; return a numpy array, as "
            "numpy.asarray makes one."
        )
    return elements


def children_of(adapter: Adapter, node: object) -> list[tuple[Any, Any]] | None:
    """Return the children of another library's container; None for other values."""
    children: Any = adapter.children(node)
    if children is None:
        return None
    is_mapping = isinstance(children, Mapping)
    pairs = [] if is_mapping else list(children)
    if is_mapping or not all(isinstance(pair, tuple) and len(pair) == _PAIR for pair in pairs):
        hint = "list(....items())" if is_mapping else "a list of them"
        raise TypeError(
            f"{method_of(adapter, 'children')} returned a {type(children).__name__}, which has no "
            f"(key, value) pairs; return {hint}, or None for what is no container."
        )
    return pairs


def rebuilt(adapter: Adapter, node: object, children: Sequence[tuple[Any, Any]]) -> object:
    """Return another library's container with other children. TypeError if it is None."""
    container = adapter.rebuild(node, children)
    if container is None:
        raise TypeError(f"{method_of(adapter, 'rebuild')} returned None; return the container.")
    return container


def moved_as(array: NDArray[Any], like: object) -> object:
    """Return a numpy array as one of the library of `like`; as it is for numpy's."""
    adapter = None if isinstance(like, np.ndarray) else array_adapter(like)
    return array if adapter is None else _move(adapter, array, like)


def _move(adapter: Adapter, array: NDArray[Any], like: object) -> object:
    result = adapter.from_host(array, like)
    if result is None:
        raise TypeError(f"{method_of(adapter, 'from_host')} returned None; return the array.")
    return result


def method_of(adapter: Adapter, name: str) -> str:
    """Return what a method of an adapter is called in messages."""
    return f"{type(adapter).__name__}.{name}"


def _package_of_class(cls: type) -> str:
    """Return the name of the package of a class; one made where no module runs has none."""
    return str(getattr(cls, "__module__", "")).partition(".")[0]


def _search(cls: type) -> Adapter | None:
    for base in cls.__mro__:
        module = _package_of_class(base)
        if module in _WITHOUT:
            continue
        if module not in _adapters and (adapter := _load(module)) is not None:
            # Unless one was registered meanwhile, perhaps by what was loaded.
            _adapters.setdefault(module, adapter)
        if module in _adapters:
            return _adapters[module]
    if _package_of_class(cls) in _WITHOUT:
        return None
    return next((adapter for knows, adapter in _adapters_by_predicate if knows(cls)), None)


def _load(module: str) -> Adapter | None:
    """Return the adapter of a module that castwise has or a package offers."""
    if module in BUILT_IN:
        own_adapter: Adapter = import_module(BUILT_IN[module]).ADAPTER
        return own_adapter
    if (entry := entry_points_of(GROUP).get(module)) is None:
        return None
    subject = f"the adapter for {module}, {entry.value} of {package_of(entry)},"
    return checked_adapter(load_entry(entry, subject), subject)


def checked_adapter(adapter: object, subject: str) -> Adapter:
    """Return an adapter, or an instance of its class. TypeError for anything else."""
    instance = adapter() if isinstance(adapter, type) and issubclass(adapter, Adapter) else adapter
    if not isinstance(instance, Adapter):
        raise TypeError(
            f"{subject} is not a castwise.adapters.protocol.Adapter; derive it from that."
        )
    return instance
