"""Which adapter a class of objects has: looked up by top-level module, imported when needed.

Kept small: `castwise.cast_tree` imports it, and with it everybody.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from castwise.adapters.protocol import Adapter

__all__ = ["GROUP", "array_adapter", "find", "register"]

GROUP = "castwise.adapters"
"""The group of entry points by which packages offer adapters."""

_OWN = {
    "jax": "castwise.adapters.jax.adapter:ADAPTER",
    "jaxlib": "castwise.adapters.jax.adapter:ADAPTER",
    "torch": "castwise.adapters.torch.adapter:ADAPTER",
}
"""castwise's own, written as entry points are. They need no metadata, which a program that was
packed into one file, or a folder on the path, does not have."""

_NEVER = frozenset({"builtins", "numpy", "ml_dtypes", "collections", "abc", "typing"})
"""Modules whose classes need none, so that nothing is looked for on behalf of them."""

_adapters: dict[str, Adapter] = {}
_found: WeakKeyDictionary[type, Adapter | None] = WeakKeyDictionary()


def register(module: str, adapter: Adapter | type[Adapter]) -> None:
    """Use an adapter for classes of a top-level module, instead of any that an entry point offers.

    Parameters
    ----------
    module : str
        As "cupy", without dots.
    adapter : Adapter, or class derived from it
        A class is called without arguments.

    Raises
    ------
    TypeError
        It is no Adapter, or `module` no str.
    ValueError
        `module` has a dot, or is numpy or another that has no adapter.

    """
    if not isinstance(module, str):
        raise TypeError(f"module={module!r} must be a str, as 'cupy'.")
    if not module.isidentifier() or module in _NEVER:
        raise ValueError(f"module={module!r} is not valid; give a top-level module, as 'cupy'.")
    _adapters[module] = _checked(adapter, f"adapter={adapter!r}")
    _found.clear()


def find(cls: type) -> Adapter | None:
    """The adapter of a class: that of the first of its bases whose top-level module has one.

    Raises
    ------
    ImportError, TypeError
        There is one, but it cannot be imported, or is no Adapter; the message names its package.

    """
    try:
        return _found[cls]
    except KeyError:
        adapter = _found[cls] = _search(cls)
        return adapter
    except TypeError:  # of a metaclass that does not hash
        return _search(cls)


def array_adapter(x: Any) -> Adapter | None:
    """The adapter of an array of another library; None for whatever else. `cast` asks for it."""
    adapter = find(type(x))
    return adapter if adapter is not None and adapter.is_array(x) else None


def _search(cls: type) -> Adapter | None:
    for base in cls.__mro__:
        module = str(base.__module__).partition(".")[0]
        if module in _NEVER:
            continue
        if module not in _adapters and (offered := _offered().get(module)) is not None:
            _adapters[module] = _loaded(offered)
        if module in _adapters:
            return _adapters[module]
    return None


@functools.cache
def _offered() -> dict[str, EntryPoint]:
    """The entry points by name. Of several for one module, the first, with a warning.

    castwise's own come first, then those of packages by name.
    """
    from importlib.metadata import EntryPoint, entry_points  # noqa: PLC0415 slow, not for numpy

    own = [EntryPoint(name, value, GROUP) for name, value in _OWN.items()]
    offered: dict[str, EntryPoint] = {}
    for entry in (*own, *sorted(entry_points(group=GROUP), key=_package)):
        first = offered.setdefault(entry.name, entry)
        if first.value != entry.value:
            warnings.warn(
                f"{_package(first)} and {_package(entry)} both have an adapter for {entry.name}; "
                f"{first.value} is used. Uninstall one of them, or choose with "
                "castwise.adapters.registry.register.",
                UserWarning,
                stacklevel=2,
            )
    return offered


def _loaded(entry: EntryPoint) -> Adapter:
    what = f"the adapter for {entry.name}, {entry.value} of {_package(entry)},"
    try:
        adapter = entry.load()
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"{what} cannot be imported ({error}); update or uninstall that package."
        ) from error
    return _checked(adapter, what)


def _checked(adapter: Any, what: str) -> Adapter:
    from castwise.adapters.protocol import Adapter  # noqa: PLC0415 not for numpy's arrays

    made = adapter() if isinstance(adapter, type) and issubclass(adapter, Adapter) else adapter
    if not isinstance(made, Adapter):
        raise TypeError(f"{what} is no castwise.adapters.protocol.Adapter; derive it from that.")
    return made


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "castwise"
